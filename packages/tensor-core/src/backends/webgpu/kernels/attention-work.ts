// What a dispatch of attention computes and moves, for its cut into shorter ones and for whoever
// counts. Tiles pass over the blocks in which positions hide every pair: a causal head of 1,024
// tokens takes little more than half of the pairs.

import { byteSize } from '@shardweave/dtypes';
import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { AttentionOperands } from '../../../kernel-calls/products.js';
import type { View } from '../../../view.js';
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
  const count = side === 'queries' ? call.numQueries : call.numKeys;
  let pairs = 0;
  for (let first = 0; first < count; first += rows) {
    const last = Math.min(first + rows, count) - 1;
    const [start] = seenColumns(call, side, first);
    const [, end] = seenColumns(call, side, last);
    const from = Math.floor(start / columns) * columns;
    pairs += rows * Math.ceil(Math.max(0, end - from) / columns) * columns;
  }
  return pairs;
}

/** The pairs where every tile walks all blocks, which none takes more of. */
export function allPairs(call: AttentionOperands, side: RowSide, tile: TileSize): number {
  return computedPairs({ ...call, isCausal: false, window: 0 }, side, tile);
}

/** The columns [start, end) that positions let a row see; see pairHelpers. */
function seenColumns(
  { isCausal, window, queryOffset, numQueries, numKeys }: AttentionOperands,
  side: RowSide,
  row: number,
): readonly [start: number, end: number] {
  const isQuery = side === 'queries';
  const at = isQuery ? row + queryOffset : row - queryOffset;
  const count = isQuery ? numKeys : numQueries;
  const before = window === 0 ? 0 : at - window + 1;
  const behind = window === 0 ? count : at + window;
  const start = isCausal && !isQuery ? at : before;
  const end = isCausal && isQuery ? at + 1 : behind;
  const clamp = (value: number) => Math.min(Math.max(value, 0), count);
  return [clamp(start), clamp(end)];
}

type Operand = 'q' | 'k' | 'v' | 'out' | 'dOut' | 'dq' | 'dk' | 'dv';

/**
 * The bytes of operands, each element once. A view may span more than that, as those of queries,
 * keys and values do that lie side by side in the rows of one product.
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
