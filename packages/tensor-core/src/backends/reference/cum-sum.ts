// Running sums along an axis.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

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
