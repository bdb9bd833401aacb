// This kernel computes the gradient of attention's mask: it computes the gradients of the scores
// once more and adds them up over the dimensions that the mask was broadcast over. A unit of work
// is a block of the mask's rows, or its only row if rows were broadcast. Each element is summed by
// one thread, in an order that depends on shapes alone.

import {
  BACKWARD_KEYS,
  BACKWARD_ROWS,
  batch,
  heads,
  key0At,
  keys,
  maskAt,
  maskBatch,
  maskColumn,
  maskHead,
  maskRow,
  numKeys,
  numRows,
  openHead,
  openKeys,
  openRows,
  queries,
  row0,
  S_AT,
} from './attention-call';
import { openSlopes, packKeys, seesBlock, slopesOfBlock } from './attention-backward';
import { LD } from './product-tile';
import { arg, chunkStart, scratchBase } from './slot';

/** The argument dMask follows those of `open` and dOut. */
const ARG_DMASK: i32 = 41;

export function attentionMaskGradient(slot: usize, chunk: u32, chunks: u32): void {
  openSlopes(slot);
  const to = <usize>arg(slot, ARG_DMASK);
  const ownBatches: u32 = maskBatch != 0 ? batch : 1;
  const ownHeads: u32 = maskHead != 0 ? heads : 1;
  const blocks: u32 = maskRow != 0 ? (queries + BACKWARD_ROWS - 1) / BACKWARD_ROWS : 1;
  const units = ownBatches * ownHeads * blocks;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let unit = chunkStart(units, chunk, chunks, 1); unit < end; unit++) {
    const first = (unit % blocks) * BACKWARD_ROWS;
    const last = maskRow != 0 ? min<u32>(first + BACKWARD_ROWS, queries) : queries;
    const ownBatch = unit / blocks / ownHeads;
    const ownHead = (unit / blocks) % ownHeads;
    openHead(slot, ownBatch, ownHead);
    clearRows(to, first, maskRow != 0 ? last : first + 1);
    for (let b = ownBatch; b < batch; b += ownBatches) {
      for (let head = ownHead; head < heads; head += ownHeads) {
        openHead(slot, b, head);
        for (let row = first; row < last; row += BACKWARD_ROWS) {
          openRows(row, BACKWARD_ROWS);
          addRows(to);
        }
      }
    }
  }
}

function clearRows(to: usize, first: u32, last: u32): void {
  const columns: u32 = maskColumn != 0 ? keys : 1;
  for (let row = first; row < last; row++) {
    memory.fill(to + ((<usize>(maskAt + row * maskRow)) << 2), 0, (<usize>columns) << 2);
  }
}

/** Adds the gradients of a block of queries, with the keys in ascending order. */
function addRows(to: usize): void {
  for (let key: u32 = 0; key < keys; key += BACKWARD_KEYS) {
    openKeys(key, BACKWARD_KEYS);
    if (!seesBlock()) {
      continue;
    }
    packKeys();
    slopesOfBlock(BACKWARD_KEYS);
    for (let r = 0; r < numRows; r++) {
      const at = maskAt + (row0 + <u32>r) * maskRow + key0At * maskColumn;
      addRow(to + ((<usize>at) << 2), scratchBase + S_AT + <usize>r * LD);
    }
  }
}

function addRow(to: usize, from: usize): void {
  if (maskColumn == 0) {
    let sum = load<f32>(to);
    for (let j = 0; j < numKeys; j++) {
      sum += load<f32>(from + (j << 2));
    }
    store<f32>(to, sum);
    return;
  }
  let j = 0;
  for (; j + 4 <= numKeys; j += 4) {
    const o = j << 2;
    v128.store(to + o, f32x4.add(v128.load(to + o), v128.load(from + o)));
  }
  for (; j < numKeys; j++) {
    const o = j << 2;
    store<f32>(to + o, load<f32>(to + o) + load<f32>(from + o));
  }
}
