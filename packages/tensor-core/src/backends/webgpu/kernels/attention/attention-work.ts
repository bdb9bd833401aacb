// What a dispatch of attention computes and moves. The operations decide whether it is cut into
// shorter dispatches, and benches count both. Tiles skip blocks in which positions hide every pair,
// so a causal head of 1,024 tokens computes little more than half of its pairs.

import { byteSize } from '@shardweave/dtypes';
import type { AttentionOperands } from '../../../../kernel-calls/attention.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import type { RowSide } from './attention-block.js';

/** The rows of a tile, and the columns of the blocks that it walks. */
export interface TileSize {
  readonly rows: number;
  readonly columns: number;
}

/** The pairs of one head for which tiles whose rows are on `side` compute scores. */
export function computedPairs(
  call: AttentionOperands,
  side: RowSide,
  { rows, columns }: TileSize,
): number {
  const [count, most] =
    side === 'queries' ? [call.numQueries, call.numKeys] : [call.numKeys, call.numQueries];
  let blocks = 0;
  for (let first = 0; first < count; first += rows) {
    const start = Math.min(Math.max(firstSeen(call, side, first), 0), most);
    const behind = behindSeen(call, side, Math.min(first + rows, count) - 1);
    const end = Math.min(Math.max(behind, 0), most);
    blocks += Math.max(0, Math.ceil(end / columns) - Math.floor(start / columns));
  }
  return blocks * rows * columns;
}

/** The pairs of one head if every tile walked all blocks, which bounds computedPairs. */
export function allPairs(call: AttentionOperands, side: RowSide, tile: TileSize): number {
  return computedPairs({ ...call, isCausal: false, window: 0 }, side, tile);
}

/** The first column that positions let a row see, which may lie outside of them all. */
function firstSeen(
  { isCausal, window, queryOffset }: AttentionOperands,
  side: RowSide,
  row: number,
): number {
  if (side === 'keys' && isCausal) {
    return row - queryOffset;
  }
  const at = side === 'queries' ? row + queryOffset : row - queryOffset;
  return window === 0 ? 0 : at - window + 1;
}

/** One more than the last column that positions let a row see, which may lie outside as well. */
function behindSeen(
  { isCausal, window, queryOffset }: AttentionOperands,
  side: RowSide,
  row: number,
): number {
  if (side === 'queries' && isCausal) {
    return row + queryOffset + 1;
  }
  const at = side === 'queries' ? row + queryOffset : row - queryOffset;
  return window === 0 ? Number.POSITIVE_INFINITY : at + window;
}

type Operand = 'q' | 'k' | 'v' | 'out' | 'dOut' | 'dq' | 'dk' | 'dv';

/**
 * The bytes of operands, with each element counted once. A view may span more: queries, keys and
 * values that lie side by side in the rows of one product span each other.
 */
export function operandBytes(
  call: AttentionOperands,
  count: number,
  names: readonly Operand[],
): number {
  const { numHeads, numKvHeads, numQueries, numKeys, dim } = call;
  const ofKeys = new Set<Operand>(['k', 'v', 'dk', 'dv']);
  return names.reduce((sum, name) => {
    const { dtype } = (call as KernelCalls['attentionBackward'])[name] as View;
    const rows = ofKeys.has(name) ? numKvHeads * numKeys : numHeads * numQueries;
    return sum + count * rows * dim * byteSize(dtype);
  }, 0);
}
