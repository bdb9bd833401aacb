// Encodes the commands of assembly/cast.ts.

import { byteSize, f32ToBf16, f32ToF16 } from '@shardweave/dtypes';
import { OP_CAST, OP_FILL } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { View } from '../../view.js';
import type { CommandWriter } from './command-writer.js';
import { CHEAP_NS } from './encode-elementwise.js';

export function fill({ out, value }: KernelCalls['fill'], w: CommandWriter): void {
  w.start(OP_FILL, 'fill')
    .address(out)
    .int(byteSize(out.dtype), bitsOf(out.dtype, value), out.size);
  w.commit(w.chunksFor(out.size * 0.2));
}

export function cast({ x, out }: KernelCalls['cast'], w: CommandWriter): void {
  w.start(OP_CAST, 'cast').view(x).view(out).int(x.size);
  w.commit(w.chunksFor(x.size * CHEAP_NS));
}

/**
 * Returns the bits of `value` in a dtype. For an integer dtype the value is truncated toward zero
 * and saturates, and NaN gives 0.
 */
function bitsOf(dtype: View['dtype'], value: number): number {
  switch (dtype) {
    case 'f32':
      return new Int32Array(new Float32Array([value]).buffer)[0]!;
    case 'f16':
      return f32ToF16(Math.fround(value));
    case 'bf16':
      return f32ToBf16(Math.fround(value));
    case 'i32':
      return Number.isNaN(value)
        ? 0
        : Math.trunc(Math.min(2 ** 31 - 1, Math.max(-(2 ** 31), value)));
    case 'u32':
      return Number.isNaN(value) ? 0 : Math.trunc(Math.min(2 ** 32 - 1, Math.max(0, value)));
  }
}
