// Strided copies, which move elements bit for bit.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { View } from '../../view.js';
import type { Open } from './elements.js';
import { forEachIndex } from './strided.js';

export function copyStrided(
  call: KernelCalls['copyStrided'],
  _open: Open,
  bits: (view: View) => Uint16Array | Uint32Array,
): void {
  const x = bits(call.x);
  const out = bits(call.out);
  forEachIndex(call.shape, [call.xStrides, call.outStrides], (_, [xWalk, outWalk]) => {
    out[call.outOffset + outWalk!] = x[call.xOffset + xWalk!]!;
  });
}
