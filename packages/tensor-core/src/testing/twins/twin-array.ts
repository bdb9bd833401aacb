// Float64 arrays with a shape, for the twins of ops, which are plain loops that share no code with
// the ops.

/** A shape and its values in row-major order: [2, 3] has six values. */
export interface TwinArray {
  readonly shape: readonly number[];
  readonly data: Float64Array;
}

/** Returns an array of `shape` whose element at each index is `valueAt(index)`. */
export function buildTwin(
  shape: readonly number[],
  valueAt: (index: readonly number[]) => number,
): TwinArray {
  let size = 1;
  for (const dim of shape) {
    size *= dim;
  }
  const data = new Float64Array(size);
  const index = shape.map(() => 0);
  for (let i = 0; i < size; i++) {
    data[i] = valueAt(index);
    // The index counts like an odometer, with its last digit fastest.
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      index[axis]! += 1;
      if (index[axis]! < shape[axis]!) {
        break;
      }
      index[axis] = 0;
    }
  }
  return { shape, data };
}

/**
 * Returns the element at `index`. Axes that the array lacks in front, or has with length 1, are
 * ignored.
 */
export function elementAt(array: TwinArray, index: readonly number[]): number {
  const lead = index.length - array.shape.length;
  let position = 0;
  array.shape.forEach((dim, axis) => {
    position = position * dim + (dim === 1 ? 0 : index[lead + axis]!);
  });
  return array.data[position]!;
}

/** Returns the number and the length of the rows along the last axis. */
export function rowsOf(array: TwinArray): { readonly rows: number; readonly cols: number } {
  const cols = array.shape[array.shape.length - 1]!;
  return { rows: array.data.length / cols, cols };
}
