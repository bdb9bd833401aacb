// Decodes a matrix in ggml's blocks, row by row, and multiplies with its rows.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import {
  type BlockType,
  blocksByteLength,
  decodeBlocks as decode,
} from '@shardweave/dtypes/blocks';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Elements, Open } from './elements.js';

export function decodeBlocks(call: KernelCalls['decodeBlocks'], open: Open): void {
  const { type, rows, width, firstRow, count, firstColumn, columns } = call;
  const words = open(call.words);
  const ids = call.ids && open(call.ids); // [count]
  const out = open(call.out); // [count, columns]
  const rowBytes = blocksByteLength(type, width);
  const from = blocksByteLength(type, firstColumn);
  const values = new Float32Array(columns);
  for (let i = 0; i < count; i++) {
    const row = ids === undefined ? firstRow + i : ids.get(i);
    if (row >= 0 && row < rows) {
      decodeAt(words, row * rowBytes + from, type, values);
    } else {
      values.fill(0);
    }
    for (let c = 0; c < columns; c++) {
      out.set(i * columns + c, values[c]!);
    }
  }
}

/** Decodes whole blocks from a byte of the words on. */
function decodeAt(words: Elements, start: number, type: BlockType, values: Float32Array): void {
  const bytes = new Uint8Array(blocksByteLength(type, values.length));
  for (let at = 0; at < bytes.length; at++) {
    bytes[at] = words.get((start + at) >> 2) >>> (((start + at) & 3) * 8);
  }
  decode(type, bytes, values);
}

export function blockDots(call: KernelCalls['blockDots'], open: Open): void {
  const { type, m, n, k } = call;
  const [words, a, out] = [open(call.words), open(call.a), open(call.out)];
  const bias = call.bias && open(call.bias); // [n]
  const row = new Float32Array(k);
  for (let j = 0; j < n; j++) {
    decodeAt(words, j * blocksByteLength(type, k), type, row);
    const b = toF32Array(fromF32Array(row, call.a.dtype), call.a.dtype);
    for (let i = 0; i < m; i++) {
      let sum = bias?.get(j) ?? 0;
      for (let c = 0; c < k; c++) {
        sum += a.get(i * k + c) * b[c]!;
      }
      out.set(i * n + j, sum);
    }
  }
}
