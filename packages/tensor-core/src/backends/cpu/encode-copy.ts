// Encodes the commands of assembly/copy.ts.

import { byteSize } from '@shardweave/dtypes';
import { OP_COPY_STRIDED } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { View } from '../../view.js';
import { collapseShape, elementCount } from './collapse-shape.js';
import type { CommandWriter } from './command-writer.js';

export function copyStrided(call: KernelCalls['copyStrided'], w: CommandWriter): void {
  const { x, out, xOffset, outOffset } = call;
  const total = elementCount(call.shape);
  const width = byteSize(x.dtype);
  const { shape, strides } = collapseShape(call.shape, [call.xStrides, call.outStrides]);
  w.start(OP_COPY_STRIDED, 'copyStrided');
  w.int(
    elementAddress(w, x, xOffset),
    elementAddress(w, out, outOffset),
    width === 4 ? 2 : 1,
    total,
    shape.length,
  );
  shape.forEach((extent, d) => {
    w.int(extent, strides[0]![d]!, strides[1]![d]!);
  });
  w.commit(w.chunksFor(total));
}

function elementAddress(w: CommandWriter, view: View, offset: number): number {
  return w.addressOf(view.buffer) + view.byteOffset + offset * byteSize(view.dtype);
}
