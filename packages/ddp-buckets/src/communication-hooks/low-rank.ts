// Products of small dense matrices on the host, row-major, in f32 with sums in f64, so that all
// ranks get the same bits.

/** out [rows, rank] = m [rows, cols] x q [cols, rank]. */
export function multiply(
  m: Float32Array,
  q: Float32Array,
  out: Float32Array,
  { rows, cols, rank }: MatrixShape,
): void {
  for (let i = 0; i < rows; i++) {
    for (let k = 0; k < rank; k++) {
      let sum = 0;
      for (let j = 0; j < cols; j++) {
        sum += m[i * cols + j]! * q[j * rank + k]!;
      }
      out[i * rank + k] = sum;
    }
  }
}

/** out [cols, rank] = transposed m [rows, cols] x p [rows, rank]. */
export function multiplyTransposed(
  m: Float32Array,
  p: Float32Array,
  out: Float32Array,
  { rows, cols, rank }: MatrixShape,
): void {
  const column = new Float64Array(cols);
  for (let k = 0; k < rank; k++) {
    column.fill(0);
    for (let i = 0; i < rows; i++) {
      const factor = p[i * rank + k]!;
      for (let j = 0; j < cols; j++) {
        column[j]! += m[i * cols + j]! * factor;
      }
    }
    for (let j = 0; j < cols; j++) {
      out[j * rank + k] = column[j]!;
    }
  }
}

/** m [rows, cols] = p [rows, rank] x transposed q [cols, rank]. */
export function expand(
  p: Float32Array,
  q: Float32Array,
  m: Float32Array,
  { rows, cols, rank }: MatrixShape,
): void {
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < cols; j++) {
      let sum = 0;
      for (let k = 0; k < rank; k++) {
        sum += p[i * rank + k]! * q[j * rank + k]!;
      }
      m[i * cols + j] = sum;
    }
  }
}

/**
 * Makes the columns of p [rows, rank] orthonormal (modified Gram-Schmidt); a zero column stays
 * zero.
 */
export function orthonormalize(p: Float32Array, rows: number, rank: number): void {
  for (let k = 0; k < rank; k++) {
    for (let before = 0; before < k; before++) {
      let dot = 0;
      for (let i = 0; i < rows; i++) {
        dot += p[i * rank + before]! * p[i * rank + k]!;
      }
      for (let i = 0; i < rows; i++) {
        p[i * rank + k]! -= dot * p[i * rank + before]!;
      }
    }
    let squared = 0;
    for (let i = 0; i < rows; i++) {
      squared += p[i * rank + k]! * p[i * rank + k]!;
    }
    const scale = squared === 0 ? 0 : 1 / Math.sqrt(squared);
    for (let i = 0; i < rows; i++) {
      p[i * rank + k]! *= scale;
    }
  }
}

export interface MatrixShape {
  readonly rows: number;
  readonly cols: number;
  readonly rank: number;
}
