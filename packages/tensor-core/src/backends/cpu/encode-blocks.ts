// Encodes the command of assembly/blocks.ts, and products with blocks (assembly/few-rows.ts).

import { type BlockType, blocksByteLength } from '@shardweave/dtypes/blocks';
import {
  BLOCKS_IN_PRODUCT,
  BLOCKS_IN_ROUNDED_PRODUCT,
  BLOCKS_Q4_0,
  BLOCKS_Q4_1,
  BLOCKS_Q4_K,
  BLOCKS_Q5_0,
  BLOCKS_Q5_1,
  BLOCKS_Q5_K,
  BLOCKS_Q6_K,
  BLOCKS_Q8_0,
  OP_DECODE_BLOCKS,
  OP_MATMUL,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

/** The time that one number takes, in ns. */
const DECODE_NS = 0.5;
/** The time that one number takes where it is multiplied, in ns. */
const DOT_NS = 0.15;
/** The same where a's rows are rounded. */
const ROUNDED_DOT_NS = 0.06;
/** The least rows of a matrix that a thread multiplies at once. */
const LEAST_ROWS = 64;

const CODES: Readonly<Record<BlockType, number>> = {
  q8_0: BLOCKS_Q8_0,
  q4_0: BLOCKS_Q4_0,
  q4_1: BLOCKS_Q4_1,
  q5_0: BLOCKS_Q5_0,
  q5_1: BLOCKS_Q5_1,
  q4_K: BLOCKS_Q4_K,
  q5_K: BLOCKS_Q5_K,
  q6_K: BLOCKS_Q6_K,
};

export function decodeBlocks(call: KernelCalls['decodeBlocks'], w: CommandWriter): void {
  const { type, rows, width, firstRow, count, firstColumn, columns } = call;
  w.start(OP_DECODE_BLOCKS, 'decodeBlocks').address(call.words).address(call.ids).view(call.out);
  w.int(CODES[type], rows, blocksByteLength(type, width), blocksByteLength(type, firstColumn));
  w.int(firstRow, count, columns);
  w.commit(w.chunksFor(count * columns * DECODE_NS, count));
}

/** A product whose second operand is named by the code of its blocks; its rows count in bytes. */
export function blockDots(call: KernelCalls['blockDots'], w: CommandWriter): void {
  const { type, m, n, k, quantizesRows } = call;
  const ns = quantizesRows ? ROUNDED_DOT_NS : DOT_NS;
  const chunks = w.chunksFor(m * n * k * ns, Math.ceil(n / LEAST_ROWS));
  w.start(OP_MATMUL, 'blockDots').view(call.a).address(call.words);
  w.int((quantizesRows ? BLOCKS_IN_ROUNDED_PRODUCT : BLOCKS_IN_PRODUCT) + CODES[type])
    .view(call.out)
    .view(call.bias);
  w.int(m, n, k, 0, 1, k, blocksByteLength(type, k), n, 1, 1);
  w.int(0, 0, 0, 0, 0, 0).float(1).int(0);
  w.int(1, chunks, 1, 0);
  w.commit(chunks);
}
