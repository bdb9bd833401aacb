// The largest elements along an axis.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function topK(call: KernelCalls['topK'], open: Open): void {
  const { outer, dim, inner, count } = call;
  const x = open(call.x); // [outer, dim, inner]
  const out = open(call.out); // [outer, count, inner]
  for (let line = 0; line < outer * inner; line++) {
    const o = Math.floor(line / inner);
    const i = line % inner;
    const valueAt = (d: number) => x.get((o * dim + d) * inner + i);
    const order = Array.from({ length: dim }, (_, d) => d);
    order.sort((a, b) => descending(valueAt(a), valueAt(b)) || a - b);
    for (let n = 0; n < count; n++) {
      out.set((o * count + n) * inner + i, order[n]!);
    }
  }
}

/** Orders numbers descending, with NaN before all numbers and zeros of both signs equal. */
function descending(a: number, b: number): number {
  if (Number.isNaN(a) || Number.isNaN(b)) {
    return Number(Number.isNaN(b)) - Number(Number.isNaN(a));
  }
  return a === b ? 0 : a > b ? -1 : 1;
}
