// Encodes the commands of assembly/gather.ts.

import { byteSize } from '@shardweave/dtypes';
import { F32, OP_CAST, OP_FILL, OP_GATHER, OP_GATHER_BACKWARD } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function gather(call: KernelCalls['gather'], w: CommandWriter): void {
  const { x, ids, out, outer, dim, inner, count } = call;
  w.start(OP_GATHER, 'gather')
    .address(x)
    .int(byteSize(x.dtype) === 4 ? 2 : 1);
  w.address(ids).address(out).int(outer, dim, inner, count);
  w.commit(w.chunksFor(outer * count * inner * 2));
}

/** Sums 16-bit gradients in f32 scratch and rounds them at the end. */
export function gatherBackward(call: KernelCalls['gatherBackward'], w: CommandWriter): void {
  const { ids, dy, dx, outer, dim, inner, count } = call;
  const isWide = dx.dtype === 'f32';
  const sums = isWide ? w.addressOf(dx.buffer) + dx.byteOffset : w.temp(dx.size * 4);
  w.start(OP_FILL, 'gatherBackward').int(sums, 4, 0, dx.size);
  w.commit(w.chunksFor(dx.size * 0.2));
  w.start(OP_GATHER_BACKWARD, 'gatherBackward').address(ids).view(dy);
  w.int(sums, outer, dim, inner, count);
  w.commit(w.chunksFor(outer * count * inner * 2, outer * inner));
  if (!isWide) {
    w.start(OP_CAST, 'gatherBackward').int(sums, F32).view(dx).int(dx.size);
    w.commit(w.chunksFor(dx.size * 0.3));
    w.release();
  }
}
