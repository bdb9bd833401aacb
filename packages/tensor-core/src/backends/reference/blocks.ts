// Decodes a matrix in ggml's blocks, row by row.

import { blocksByteLength, decodeBlocks as decode } from '@shardweave/dtypes/blocks';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function decodeBlocks(call: KernelCalls['decodeBlocks'], open: Open): void {
  const { type, rows, width, firstRow, count, firstColumn, columns } = call;
  const words = open(call.words);
  const ids = call.ids && open(call.ids); // [count]
  const out = open(call.out); // [count, columns]
  const rowBytes = blocksByteLength(type, width);
  const from = blocksByteLength(type, firstColumn);
  const bytes = new Uint8Array(blocksByteLength(type, columns));
  const values = new Float32Array(columns);
  for (let i = 0; i < count; i++) {
    const row = ids === undefined ? firstRow + i : ids.get(i);
    if (row >= 0 && row < rows) {
      const start = row * rowBytes + from;
      for (let at = 0; at < bytes.length; at++) {
        bytes[at] = words.get((start + at) >> 2) >>> (((start + at) & 3) * 8);
      }
      decode(type, bytes, values);
    } else {
      values.fill(0);
    }
    for (let c = 0; c < columns; c++) {
      out.set(i * columns + c, values[c]!);
    }
  }
}
