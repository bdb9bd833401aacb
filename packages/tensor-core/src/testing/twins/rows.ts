// Float64 twins of ops along the last axis: softmax, layer norm, cross-entropy, embedding.

import { rowsOf, type TwinArray } from './twin-array.js';

export function softmaxTwin(x: TwinArray, options: { readonly isLog: boolean }): TwinArray {
  const { rows, cols } = rowsOf(x);
  const data = new Float64Array(x.data.length);
  for (let r = 0; r < rows; r++) {
    let total = 0;
    for (let c = 0; c < cols; c++) {
      total += Math.exp(x.data[r * cols + c]!);
    }
    for (let c = 0; c < cols; c++) {
      const value = x.data[r * cols + c]!;
      data[r * cols + c] = options.isLog ? value - Math.log(total) : Math.exp(value) / total;
    }
  }
  return { shape: x.shape, data };
}

export function layerNormTwin(
  x: TwinArray,
  options: {
    readonly weight?: TwinArray | undefined;
    readonly bias?: TwinArray | undefined;
    readonly eps: number;
  },
): TwinArray {
  const { rows, cols } = rowsOf(x);
  const data = new Float64Array(x.data.length);
  for (let r = 0; r < rows; r++) {
    const row = x.data.subarray(r * cols, (r + 1) * cols);
    let mean = 0;
    for (const value of row) {
      mean += value / cols;
    }
    let variance = 0;
    for (const value of row) {
      variance += (value - mean) ** 2 / cols;
    }
    for (let c = 0; c < cols; c++) {
      const normal = (row[c]! - mean) / Math.sqrt(variance + options.eps);
      data[r * cols + c] = normal * (options.weight?.data[c] ?? 1) + (options.bias?.data[c] ?? 0);
    }
  }
  return { shape: x.shape, data };
}

export function rmsNormTwin(
  x: TwinArray,
  options: {
    readonly weight?: TwinArray | undefined;
    readonly weightOffset?: number;
    readonly eps: number;
  },
): TwinArray {
  const { cols } = rowsOf(x);
  const { weight, weightOffset = 0, eps } = options;
  const data = x.data.map((value, i) => {
    const row = x.data.subarray(i - (i % cols), i - (i % cols) + cols);
    const meanSquare = row.reduce((sum, entry) => sum + entry * entry, 0) / cols;
    const scale = weight === undefined ? 1 : weight.data[i % cols]! + weightOffset;
    return (value / Math.sqrt(meanSquare + eps)) * scale;
  });
  return { shape: x.shape, data };
}

/**
 * Returns the loss, to which rows whose target is no class add 0. A mean divides by the rows that
 * count, or, with `divisor` 'all', by all.
 */
export function crossEntropyTwin(
  logits: TwinArray,
  targets: TwinArray,
  options: {
    readonly reduction: 'mean' | 'sum' | 'none';
    readonly divisor?: 'counted' | 'all';
    readonly weights?: TwinArray;
  },
): TwinArray {
  const { reduction, weights } = options;
  const { rows, cols } = rowsOf(logits);
  const losses = new Float64Array(rows);
  let counted = 0;
  for (let r = 0; r < rows; r++) {
    const target = targets.data[r]!;
    if (target < 0 || target >= cols) {
      continue;
    }
    counted += 1;
    let total = 0;
    for (let c = 0; c < cols; c++) {
      total += Math.exp(logits.data[r * cols + c]!);
    }
    const loss = Math.log(total) - logits.data[r * cols + target]!;
    losses[r] = loss * (weights?.data[r] ?? 1);
  }
  if (reduction === 'none') {
    return { shape: targets.shape, data: losses };
  }
  let total = 0;
  for (const loss of losses) {
    total += loss;
  }
  const divisor = options.divisor === 'all' ? rows : counted;
  return { shape: [], data: Float64Array.of(reduction === 'sum' ? total : total / divisor) };
}

/** Returns rows of the table by id, and zeros for an id outside it. */
export function embeddingTwin(table: TwinArray, ids: TwinArray): TwinArray {
  const [rows, cols] = table.shape as [number, number];
  const data = new Float64Array(ids.data.length * cols);
  ids.data.forEach((id, i) => {
    if (id < 0 || id >= rows) {
      return;
    }
    for (let c = 0; c < cols; c++) {
      data[i * cols + c] = table.data[id * cols + c]!;
    }
  });
  return { shape: [...ids.shape, cols], data };
}
