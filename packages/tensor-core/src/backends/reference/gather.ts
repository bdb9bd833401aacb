// Gather, which picks elements along an axis by index, and its gradient.

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
