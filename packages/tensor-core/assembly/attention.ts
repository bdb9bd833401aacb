// This is attention in blocks of queries by keys (Dao, "FlashAttention-2", 2023). Each thread takes
// blocks of queries. Results depend on shapes alone, never on how the work is split.

import {
  batch,
  dim,
  dtype,
  FORWARD_KEYS,
  FORWARD_ROWS,
  heads,
  isNative,
  K_ACROSS_AT,
  kAt,
  kBase,
  key0At,
  kRow,
  numKeys,
  numRows,
  OUT_AT,
  open,
  openHead,
  openKeys,
  openRows,
  Q_AT,
  queries,
  row0,
  S_AT,
  V_PANELS_AT,
  vAt,
  vBase,
  vRow,
} from './attention-call';
import { attentionOfFewRows, hasFewRows } from './attention-few-rows';
import {
  addValues,
  clearBeside,
  findVisited,
  keyScores,
  NATIVE_KEYS,
  NATIVE_ROWS,
  placeKeys,
} from './attention-native';
import { carefulRows, keyProducts, mustSkip, rowProducts } from './attention-products';
import { findRanges, hiOf, loOf, sharesSegment } from './attention-visible';
import { finishRows, startRows, weigh } from './attention-weights';
import { packStraight, packTransposed } from './pack';
import { TILE_ROWS } from './product-tile';
import { chunkStart, scratchBase } from './slot';

export function attention(slot: usize, chunk: u32, chunks: u32): void {
  open(slot);
  if (hasFewRows()) {
    attentionOfFewRows(slot, chunk, chunks);
    return;
  }
  const rows: u32 = isNative ? NATIVE_ROWS : FORWARD_ROWS;
  const blocks = (queries + rows - 1) / rows;
  const units = batch * heads * blocks;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let unit = chunkStart(units, chunk, chunks, 1); unit < end; unit++) {
    const head = unit / blocks;
    openHead(slot, head / heads, head % heads);
    // The last blocks come first. Under a causal mask they take longest, and if they came last,
    // other threads would wait for them.
    openRows((blocks - 1 - (unit % blocks)) * rows, rows);
    forwardRows(isNative ? NATIVE_KEYS : FORWARD_KEYS);
  }
}

/** Computes one block of queries, over all keys that it sees. */
function forwardRows(keysAtOnce: u32): void {
  startRows();
  const last = hiOf(row0 + <u32>numRows - 1);
  for (let first = loOf(row0) / keysAtOnce * keysAtOnce; first < last; first += keysAtOnce) {
    openKeys(first, keysAtOnce);
    if (!sharesSegment()) {
      continue;
    }
    if (isNative) {
      addNatively();
    } else {
      addBlock();
    }
  }
  finishRows();
}

/** Adds the values of a block of keys. */
function addBlock(): void {
  const s = scratchBase + S_AT;
  const v = scratchBase + V_PANELS_AT;
  const across = scratchBase + K_ACROSS_AT;
  findRanges();
  packTransposed(kBase, dtype, kAt + key0At * kRow, kRow, dim, numKeys, 8, across);
  packStraight(vBase, dtype, vAt + key0At * vRow, vRow, numKeys, dim, 8, v);
  const skips = mustSkip(v);
  for (let r = 0; r < numRows; r += TILE_ROWS) {
    rowProducts(r, scratchBase + Q_AT, across, s);
    for (let i = r; i < min(r + TILE_ROWS, numRows); i++) {
      weigh(i);
    }
    if (!skips) {
      keyProducts(r, s, v, scratchBase + OUT_AT, false);
    }
  }
  if (skips) {
    carefulRows(s, v, scratchBase + OUT_AT);
  }
}

/** Does so by a library of the host. */
function addNatively(): void {
  if (!findVisited()) {
    return;
  }
  const s = scratchBase + S_AT;
  placeKeys();
  keyScores(scratchBase + Q_AT, s);
  for (let r = 0; r < numRows; r++) {
    weigh(r);
    clearBeside(s, r);
  }
  addValues(s, scratchBase + OUT_AT);
}
