// The float64 twin of batched matrix products.

import { buildTwin, elementAt, type TwinArray } from './twin-array.js';

/**
 * Returns a times b over the last two axes, which may be transposed in each. Leading axes are
 * broadcast.
 */
export function matmulTwin(
  a: TwinArray,
  b: TwinArray,
  options: { readonly transposeA?: boolean; readonly transposeB?: boolean } = {},
): TwinArray {
  const { transposeA = false, transposeB = false } = options;
  const [aRows, aCols] = a.shape.slice(-2) as [number, number];
  const [bRows, bCols] = b.shape.slice(-2) as [number, number];
  const m = transposeA ? aCols : aRows;
  const k = transposeA ? aRows : aCols;
  const n = transposeB ? bRows : bCols;
  const rank = Math.max(a.shape.length, b.shape.length);
  const lead: number[] = [];
  for (let axis = rank; axis > 2; axis--) {
    const [left, right] = [a, b].map(({ shape }) => shape[shape.length - axis] ?? 1);
    lead.push(left === 1 ? right! : left!);
  }
  return buildTwin([...lead, m, n], (index) => {
    const batch = index.slice(0, -2);
    const [i, j] = index.slice(-2) as [number, number];
    let sum = 0;
    for (let p = 0; p < k; p++) {
      const left = elementAt(a, [...batch, ...(transposeA ? [p, i] : [i, p])]);
      const right = elementAt(b, [...batch, ...(transposeB ? [j, p] : [p, j])]);
      sum += left * right;
    }
    return sum;
  });
}
