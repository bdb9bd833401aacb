// This is attention for few queries, such as the one of each new token when text is generated.
// Packing keys would cost more than the products, so keys and values are read once, where they lie,
// for all heads of a position together. The rows of scratch are those of all these heads: the
// queries of the first head, then those of the next.

import {
  batch,
  dim,
  dtype,
  FORWARD_KEYS,
  heads,
  kAt,
  kBase,
  key0At,
  kRow,
  kvHeads,
  numKeys,
  numRows,
  OUT_AT,
  openHead,
  openKeys,
  openRows,
  openSlots,
  Q_AT,
  queries,
  row0,
  S_AT,
  slot0,
  vAt,
  vBase,
  vRow,
} from './attention-call';
import {
  findRanges,
  fromOf,
  hiOf,
  isPartial,
  loOf,
  prepareRow,
  sees,
  sharesSegment,
  toOf,
} from './attention-visible';
import { finishRows, startRows, weigh } from './attention-weights';
import { laneMask, widen } from './convert';
import { fourDots } from './dots';
import { BLOCK_BYTES } from './elementwise';
import { madd } from './fuse';
import { ATTENTION_FEW, ATTENTION_LONG } from './layout';
import { LD } from './product-tile';
import { arg, chunkStart, scratchBase } from './slot';

// The thread works on `count` heads of keys from head0 on, of one batch. kHead and vHead are the
// elements from one of these heads to the next.
let batchIndex: u32 = 0;
let head0: u32 = 0;
let count: u32 = 0;
let kHead: u32 = 0;
let vHead: u32 = 0;

/** The number of queries in all heads that share a head of keys. */
@inline
function sharedRows(): u32 {
  return (heads / kvHeads) * queries;
}

/**
 * Returns whether the call has few queries. This depends on the call's shape alone, not on the
 * block, so that the split into chunks changes no result.
 */
export function hasFewRows(): bool {
  return queries <= <u32>ATTENTION_FEW && sharedRows() <= <u32>ATTENTION_LONG;
}

export function attentionOfFewRows(slot: usize, chunk: u32, chunks: u32): void {
  kHead = arg(slot, 24);
  vHead = arg(slot, 27);
  const units = batch * kvHeads;
  const most = ATTENTION_LONG / sharedRows();
  const end = chunkStart(units, chunk + 1, chunks, 1);
  let unit = chunkStart(units, chunk, chunks, 1);
  while (unit < end) {
    batchIndex = unit / kvHeads;
    head0 = unit % kvHeads;
    count = min<u32>(most, min<u32>(kvHeads - head0, end - unit));
    forwardHeads(slot);
    unit += count;
  }
}

function forwardHeads(slot: usize): void {
  const all = count * (heads / kvHeads);
  for (let i: u32 = 0; i < all; i++) {
    openMember(slot, i);
    startRows();
  }
  const last = hiOf(row0 + <u32>numRows - 1);
  for (let first = loOf(row0) / FORWARD_KEYS * FORWARD_KEYS; first < last; first += FORWARD_KEYS) {
    openMember(slot, 0);
    openKeys(first, FORWARD_KEYS);
    if (!sharesSegment()) {
      continue;
    }
    findRanges();
    scores();
    for (let i: u32 = 0; i < all; i++) {
      openMember(slot, i);
      for (let r = 0; r < numRows; r++) {
        weigh(r);
      }
    }
    openMember(slot, 0);
    if (!isPartial || isFinite()) {
      sums();
      continue;
    }
    for (let i: u32 = 0; i < all; i++) {
      openMember(slot, i);
      carefulSums();
    }
  }
  for (let i: u32 = 0; i < all; i++) {
    openMember(slot, i);
    finishRows();
  }
}

/** Opens the i-th query head among those of the heads of keys that the thread works on. */
function openMember(slot: usize, i: u32): void {
  openHead(slot, batchIndex, head0 * (heads / kvHeads) + i);
  openRows(0, queries);
  openSlots(<i32>(i * queries));
}

/** Computes the scores of all rows, for the keys that they visit. */
function scores(): void {
  const rows = <i32>sharedRows();
  const to = toOf(0);
  for (let j = fromOf(0); j < to; j += 4) {
    let q = scratchBase + Q_AT;
    let s = scratchBase + S_AT + (j << 2);
    for (let h: u32 = 0; h < count; h++) {
      const at = kAt + h * kHead;
      const k0 = rowOf(kBase, at, kRow, j, 0);
      const k1 = rowOf(kBase, at, kRow, j + 1, 1);
      const k2 = rowOf(kBase, at, kRow, j + 2, 2);
      const k3 = rowOf(kBase, at, kRow, j + 3, 3);
      for (let r = 0; r < rows; r++) {
        v128.store(s, fourDots(q, k0, k1, k2, k3, dim));
        q += LD;
        s += LD;
      }
    }
  }
}

/**
 * Adds the weighted values to the results of all rows. The weight of a key that a row doesn't see
 * is 0.
 */
function sums(): void {
  const rows = <i32>sharedRows();
  const to = toOf(0);
  for (let j = fromOf(0); j < to; j += 4) {
    let w = scratchBase + S_AT + (j << 2);
    let out = scratchBase + OUT_AT;
    for (let h: u32 = 0; h < count; h++) {
      const at = vAt + h * vHead;
      const v0 = rowOf(vBase, at, vRow, j, 0);
      const v1 = rowOf(vBase, at, vRow, j + 1, 1);
      const v2 = rowOf(vBase, at, vRow, j + 2, 2);
      const v3 = rowOf(vBase, at, vRow, j + 3, 3);
      for (let r = 0; r < rows; r++) {
        addFour(w, v0, v1, v2, v3, out);
        w += LD;
        out += LD;
      }
    }
  }
}

function addFour(w: usize, v0: usize, v1: usize, v2: usize, v3: usize, out: usize): void {
  const w0 = v128.load_splat<f32>(w);
  const w1 = v128.load_splat<f32>(w, 4);
  const w2 = v128.load_splat<f32>(w, 8);
  const w3 = v128.load_splat<f32>(w, 12);
  for (let o = 0; o < dim << 2; o += 16) {
    let sum = v128.load(out + o);
    sum = madd(w0, v128.load(v0 + o), sum);
    sum = madd(w1, v128.load(v1 + o), sum);
    sum = madd(w2, v128.load(v2 + o), sum);
    v128.store(out + o, madd(w3, v128.load(v3 + o), sum));
  }
}

/**
 * Returns the address of key or value j of the block in f32. Past the last key it is the last one
 * again.
 */
@inline
function rowOf(base: usize, at: u32, row: u32, j: i32, block: usize): usize {
  const index = key0At + <u32>min(j, numKeys - 1);
  return widen(base, dtype, at + index * row, dim, scratchBase + BLOCK_BYTES * block);
}

// ---- see Note [hidden keys] in attention-products.ts --------------------------------------------

/** Returns whether all values of the block are finite. */
function isFinite(): bool {
  const zero = f32x4.splat(0);
  let sum = zero;
  for (let h: u32 = 0; h < count; h++) {
    for (let j = 0; j < numKeys; j++) {
      const v = rowOf(vBase, vAt + h * vHead, vRow, j, 0);
      for (let d = 0; d < dim; d += 4) {
        sum = f32x4.add(sum, v128.and(f32x4.mul(v128.load(v + (d << 2)), zero), laneMask(dim - d)));
      }
    }
  }
  return i32x4.all_true(f32x4.eq(sum, zero));
}

function carefulSums(): void {
  for (let r = 0; r < numRows; r++) {
    prepareRow(row0 + <u32>r);
    const at = <usize>(slot0 + r) * LD;
    const out = scratchBase + OUT_AT + at;
    const to = min(toOf(r), numKeys);
    for (let j = fromOf(r); j < to; j++) {
      if (!sees(j)) {
        continue;
      }
      const v = rowOf(vBase, vAt, vRow, j, 0);
      const w = v128.load_splat<f32>(scratchBase + S_AT + at + (j << 2));
      for (let o = 0; o < dim << 2; o += 16) {
        v128.store(out + o, madd(w, v128.load(v + o), v128.load(out + o)));
      }
    }
  }
}
