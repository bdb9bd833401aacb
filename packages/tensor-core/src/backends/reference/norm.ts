// The sum of squares that gradient clipping needs.

import type { KernelCalls } from '../../backend.js';
import type { Open } from './elements.js';

export function squaredNorm(call: KernelCalls['squaredNorm'], open: Open): void {
  const x = open(call.x);
  const out = open(call.out); // [1]
  let sum = call.accumulate ? out.get(0) : 0;
  for (let i = 0; i < x.size; i++) {
    sum += x.get(i) ** 2;
  }
  out.set(0, sum);
}
