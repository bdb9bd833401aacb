// Filling a view with a value, and converting a view to another dtype.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function fill({ out, value }: KernelCalls['fill'], open: Open): void {
  const to = open(out);
  for (let i = 0; i < to.size; i++) {
    to.set(i, value);
  }
}

export function cast({ x, out }: KernelCalls['cast'], open: Open): void {
  const isIntegerPair = isInteger(x) && isInteger(out);
  const from = open(isIntegerPair ? { ...x, dtype: out.dtype } : x); // integers keep their bits
  const to = open(out);
  for (let i = 0; i < to.size; i++) {
    to.set(i, from.get(i));
  }
}

function isInteger({ dtype }: KernelCalls['cast']['x']): boolean {
  return dtype === 'i32' || dtype === 'u32';
}
