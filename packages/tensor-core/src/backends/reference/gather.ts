// Gather, which picks elements along an axis by index, its gradient, the largest elements along an
// axis, and running sums.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function gather(call: KernelCalls['gather'], open: Open): void {
  const { outer, dim, inner, count } = call;
  const x = open(call.x); // [outer, dim, inner]
  const ids = open(call.ids); // [outer, count, inner]
  const out = open(call.out); // [outer, count, inner]
  for (let o = 0; o < outer; o++) {
    for (let at = o * count * inner; at < (o + 1) * count * inner; at++) {
      const id = ids.get(at);
      const isValid = id >= 0 && id < dim;
      out.set(at, isValid ? x.get((o * dim + id) * inner + (at % inner)) : 0);
    }
  }
}

export function gatherBackward(call: KernelCalls['gatherBackward'], open: Open): void {
  const { outer, dim, inner, count } = call;
  const ids = open(call.ids);
  const dy = open(call.dy);
  const dx = open(call.dx);
  const sums = new Float64Array(outer * dim * inner);
  for (let o = 0; o < outer; o++) {
    for (let at = o * count * inner; at < (o + 1) * count * inner; at++) {
      const id = ids.get(at);
      if (id >= 0 && id < dim) {
        sums[(o * dim + id) * inner + (at % inner)]! += dy.get(at);
      }
    }
  }
  sums.forEach((sum, i) => {
    dx.set(i, sum);
  });
}

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

export function cumSum(call: KernelCalls['cumSum'], open: Open): void {
  const { outer, dim, inner, isReverse } = call;
  const x = open(call.x); // [outer, dim, inner]
  const out = open(call.out);
  const wrap = { i32: (v: number) => v | 0, u32: (v: number) => v >>> 0 }[call.out.dtype as string];
  for (let line = 0; line < outer * inner; line++) {
    const first = Math.floor(line / inner) * dim * inner + (line % inner);
    let sum = 0;
    for (let n = 0; n < dim; n++) {
      const at = first + (isReverse ? dim - 1 - n : n) * inner;
      sum += x.get(at);
      sum = wrap?.(sum) ?? sum;
      out.set(at, sum);
    }
  }
}
