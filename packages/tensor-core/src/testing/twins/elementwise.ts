// Float64 twins of functions of single elements and pairs.

import { buildTwin, elementAt, type TwinArray } from './twin-array.js';

/** Returns f of each element. */
export function mapTwin(x: TwinArray, f: (value: number) => number): TwinArray {
  return { shape: x.shape, data: x.data.map(f) };
}

/** Returns f of each pair of elements, broadcast by NumPy's rules. */
export function pairTwin(
  a: TwinArray,
  b: TwinArray,
  f: (a: number, b: number) => number,
): TwinArray {
  const rank = Math.max(a.shape.length, b.shape.length);
  const padded = (shape: readonly number[]) => [
    ...new Array<number>(rank - shape.length).fill(1),
    ...shape,
  ];
  const [left, right] = [padded(a.shape), padded(b.shape)];
  const shape = left.map((dim, i) => Math.max(dim, right[i]!));
  return buildTwin(shape, (index) => f(elementAt(a, index), elementAt(b, index)));
}

/** Computes the error function by Simpson's rule, to about 1e-11 for |x| <= 4. */
export function erf(x: number): number {
  const steps = 2000;
  const h = x / steps;
  let sum = 1 + Math.exp(-x * x);
  for (let i = 1; i < steps; i++) {
    sum += (i % 2 === 0 ? 2 : 4) * Math.exp(-((i * h) ** 2));
  }
  return ((2 / Math.sqrt(Math.PI)) * h * sum) / 3;
}

export function siluOf(x: number): number {
  return x / (1 + Math.exp(-x));
}

export function geluErf(x: number): number {
  return (x / 2) * (1 + erf(x / Math.sqrt(2)));
}

export function geluTanh(x: number): number {
  return (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
}
