// Encodes the command of assembly/blocks.ts.

import { type BlockType, blocksByteLength } from '@shardweave/dtypes/blocks';
import {
  BLOCKS_Q4_0,
  BLOCKS_Q4_1,
  BLOCKS_Q4_K,
  BLOCKS_Q5_0,
  BLOCKS_Q5_1,
  BLOCKS_Q5_K,
  BLOCKS_Q6_K,
  BLOCKS_Q8_0,
  OP_DECODE_BLOCKS,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

/** The time that one number takes, in ns. */
const DECODE_NS = 0.5;

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
