// Float64 twins of reductions over axes.

import { buildTwin, elementAt, type TwinArray } from './twin-array.js';

export type TwinReduction = 'sum' | 'mean' | 'max' | 'min';

/** Reduces `axes`, which stay with length 1 if `keepDims`. */
export function reduceTwin(
  kind: TwinReduction,
  x: TwinArray,
  axes: readonly number[],
  keepDims = false,
): TwinArray {
  const kept = x.shape.map((dim, axis) => (axes.includes(axis) ? 1 : dim));
  const reduced = x.shape.map((dim, axis) => (axes.includes(axis) ? dim : 1));
  const { data } = buildTwin(kept, (index) => {
    const values: number[] = [];
    buildTwin(reduced, (inner) => {
      values.push(
        elementAt(
          x,
          index.map((i, axis) => i + inner[axis]!),
        ),
      );
      return 0;
    });
    if (kind === 'max') {
      return Math.max(...values);
    }
    if (kind === 'min') {
      return Math.min(...values);
    }
    let total = 0;
    for (const value of values) {
      total += value;
    }
    return kind === 'sum' ? total : total / values.length;
  });
  return { shape: keepDims ? kept : x.shape.filter((_, axis) => !axes.includes(axis)), data };
}
