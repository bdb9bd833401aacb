// These variables hold what a thread works on in a call of attention: the call's arguments, a head,
// a block of queries and a block of keys, and their places in scratch. They can be globals, since a
// thread runs one command at a time and threads don't share them.

import { narrow, storePartial, target, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { ATTENTION_LONG, ATTENTION_SHORT, F32 } from './layout';
import { panelBytes } from './pack';
import { LD } from './product-tile';
import { arg, argF, argI, scratchBase } from './slot';

/**
 * The number of queries and of keys in a block. Both are multiples of 6, the rows of a tile, and of
 * 8, the keys of a panel. The forward pass reads keys and values once for each block of queries,
 * the backward pass reads queries and dOut once for each block of keys.
 */
export const FORWARD_ROWS: i32 = ATTENTION_LONG;
export const FORWARD_KEYS: i32 = ATTENTION_SHORT;
export const BACKWARD_ROWS: i32 = ATTENTION_SHORT;
export const BACKWARD_KEYS: i32 = ATTENTION_LONG;
const LONG_ROWS: usize = <usize>ATTENTION_LONG * LD;
const SHORT_ROWS: usize = <usize>ATTENTION_SHORT * LD;
/**
 * The bytes of the panels of the widest head, which has 256 columns: 32 panels of eight columns by
 * all rows of a block. Panels of eight rows by all columns need no more.
 */
const LONG_PANELS: usize = 32 * (<usize>ATTENTION_LONG * 8 * 4 + 64);
const SHORT_PANELS: usize = 32 * (<usize>ATTENTION_SHORT * 8 * 4 + 64);

// The four blocks at the start of scratch belong to packing.
/**
 * For each row four lanes of the largest score (all equal), of sums of exponentials (which add up
 * to the sum), and of whether the row has seen a key.
 */
export const MOST_AT: usize = BLOCK_BYTES * 4;
export const SUM_AT: usize = MOST_AT + ATTENTION_LONG * 16;
export const SEEN_AT: usize = SUM_AT + ATTENTION_LONG * 16;
/**
 * For each row: the first key of the block that its tile visits and one more than the last, both
 * rounded to whole panels of 8.
 */
export const FROM_AT: usize = SEEN_AT + ATTENTION_LONG * 16;
export const TO_AT: usize = FROM_AT + ATTENTION_LONG;
/** The same, not rounded. */
export const LO_AT: usize = TO_AT + ATTENTION_LONG;
export const HI_AT: usize = LO_AT + ATTENTION_LONG;
/** The mask's values and the random words of the one row that is worked on. */
export const MASK_AT: usize = HI_AT + ATTENTION_LONG;
export const WORDS_AT: usize = MASK_AT + ATTENTION_LONG * 4 + 64;
/** The rows of queries. Like all rows in scratch they stand LD bytes apart. */
export const Q_AT: usize = WORDS_AT + ATTENTION_LONG * 4 + 128;
/** The scores, which are replaced by the weights or by their own gradients. */
export const S_AT: usize = Q_AT + LONG_ROWS;
/**
 * In the forward pass the results before their division, in the backward pass the block's part of
 * dq.
 */
export const OUT_AT: usize = S_AT + LONG_ROWS;
/** The keys in panels of eight keys by all columns, with which rows of queries are multiplied. */
export const K_ACROSS_AT: usize = OUT_AT + LONG_ROWS;
/**
 * In the forward pass the values in panels of eight columns by all keys. The backward pass keeps
 * the values in panels of eight keys here, as K_ACROSS_AT does the keys.
 */
export const V_PANELS_AT: usize = K_ACROSS_AT + LONG_PANELS;
export const V_ACROSS_AT: usize = V_PANELS_AT;
// Only the backward pass uses what follows. Weights and the gradients of scores are multiplied with
// panels of eight columns.
export const K_PANELS_AT: usize = V_ACROSS_AT + LONG_PANELS;
export const Q_PANELS_AT: usize = K_PANELS_AT + LONG_PANELS;
export const DOUT_PANELS_AT: usize = Q_PANELS_AT + SHORT_PANELS;
export const DOUT_AT: usize = DOUT_PANELS_AT + SHORT_PANELS;
export const P_AT: usize = DOUT_AT + SHORT_ROWS;
export const DK_AT: usize = P_AT + SHORT_ROWS;
export const DV_AT: usize = DK_AT + LONG_ROWS;

export const SMALLEST: f32 = -Infinity;

// The arguments of the call that this thread works on.
export let dtype: i32 = 0;
export let qBase: usize = 0;
export let kBase: usize = 0;
export let vBase: usize = 0;
export let outBase: usize = 0;
export let lseBase: usize = 0;
export let maskBase: usize = 0;
export let maskType: i32 = 0;
export let querySegments: usize = 0;
let keySegments: usize = 0;
export let batch: u32 = 0;
export let heads: u32 = 0;
export let kvHeads: u32 = 0;
export let queries: u32 = 0;
export let keys: u32 = 0;
export let dim: i32 = 0;
export let scale: f32 = 1;
export let isCausal: bool = false;
export let window: i32 = 0;
export let queryOffset: i32 = 0;
export let qRow: u32 = 0;
export let kRow: u32 = 0;
export let vRow: u32 = 0;
export let outRow: u32 = 0;
export let maskBatch: u32 = 0;
export let maskHead: u32 = 0;
export let maskRow: u32 = 0;
export let maskColumn: u32 = 0;
export let threshold: i32 = 0;
export let keptScale: f32 = 1;
export let key0: u32 = 0;
export let key1: u32 = 0;
export let counter: u64 = 0;
export let hasDropout: bool = false;
/** Whether a library of the host computes the products: see attention-native.ts. */
export let isNative: bool = false;
/**
 * The current head: the first element of each operand, of the segment ids and of the mask, and the
 * number of its first row among the rows of all heads.
 */
export let qAt: u32 = 0;
export let kAt: u32 = 0;
export let vAt: u32 = 0;
export let outAt: u32 = 0;
export let maskAt: u32 = 0;
export let firstRow: u32 = 0;
export let queryIds: usize = 0;
export let keyIds: usize = 0;
// The current block.
export let row0: u32 = 0;
export let numRows: i32 = 0;
/** The scratch row that holds the block's first row. */
export let slot0: i32 = 0;
export let key0At: u32 = 0;
export let numKeys: i32 = 0;

/**
 * Reads the arguments: dtype, q, k, v, out, stats, mask, its dtype, query segments, key segments,
 * batch, heads, kv heads, queries, keys, dim, scale, isCausal, window, query offset, the strides
 * (batch, head, row) of q, of k, of v and of the mask (which has one of columns too), dropout's
 * threshold, the scale of what dropout keeps (0 means no dropout), key0, key1, counter low and
 * high, and whether products are native.
 */
export function open(slot: usize): void {
  dtype = argI(slot, 0);
  qBase = <usize>arg(slot, 1);
  kBase = <usize>arg(slot, 2);
  vBase = <usize>arg(slot, 3);
  outBase = <usize>arg(slot, 4);
  lseBase = <usize>arg(slot, 5);
  maskBase = <usize>arg(slot, 6);
  maskType = argI(slot, 7);
  querySegments = <usize>arg(slot, 8);
  keySegments = <usize>arg(slot, 9);
  batch = arg(slot, 10);
  heads = arg(slot, 11);
  kvHeads = arg(slot, 12);
  queries = arg(slot, 13);
  keys = arg(slot, 14);
  dim = argI(slot, 15);
  scale = argF(slot, 16);
  isCausal = argI(slot, 17) != 0;
  window = argI(slot, 18);
  queryOffset = argI(slot, 19);
  qRow = arg(slot, 22);
  kRow = arg(slot, 25);
  vRow = arg(slot, 28);
  outRow = heads * <u32>dim;
  maskBatch = arg(slot, 29);
  maskHead = arg(slot, 30);
  maskRow = arg(slot, 31);
  maskColumn = arg(slot, 32);
  threshold = argI(slot, 33);
  keptScale = argF(slot, 34);
  hasDropout = keptScale != 0;
  key0 = arg(slot, 35);
  key1 = arg(slot, 36);
  counter = (<u64>arg(slot, 38) << 32) | <u64>arg(slot, 37);
  isNative = argI(slot, 39) != 0;
}

export function openHead(slot: usize, b: u32, head: u32): void {
  const kvHead = head / (heads / kvHeads);
  qAt = b * arg(slot, 20) + head * arg(slot, 21);
  kAt = b * arg(slot, 23) + kvHead * arg(slot, 24);
  vAt = b * arg(slot, 26) + kvHead * arg(slot, 27);
  maskAt = b * maskBatch + head * maskHead;
  outAt = b * queries * outRow + head * <u32>dim;
  firstRow = (b * heads + head) * queries;
  queryIds = querySegments + ((<usize>(b * queries)) << 2);
  keyIds = keySegments + ((<usize>(b * keys)) << 2);
}

export function openRows(first: u32, most: u32): void {
  row0 = first;
  numRows = <i32>min<u32>(most, queries - first);
  slot0 = 0;
}

export function openSlots(first: i32): void {
  slot0 = first;
}

export function openKeys(first: u32, most: u32): void {
  key0At = first;
  numKeys = <i32>min<u32>(most, keys - first);
}

/**
 * Copies n rows of an operand into scratch as f32, multiplied by `factor`, LD bytes apart. The rows
 * of a fused projection stand thousands of bytes apart, and read there they would compete for the
 * same few cache sets.
 */
export function loadRows(base: usize, at: u32, row: u32, n: i32, to: usize, factor: f32): void {
  const f = f32x4.splat(factor);
  for (let r = 0; r < n; r++) {
    const first = at + <u32>r * row;
    const from = dtype == F32
      ? base + ((<usize>first) << 2)
      : widen(base, dtype, first, dim, scratchBase);
    for (let d = 0; d < dim; d += 4) {
      v128.store(to + (d << 2), f32x4.mul(v128.load(from + (d << 2)), f));
    }
    to += LD;
  }
}

/** Clears n rows of scratch. V8 calls a function of its host for memory.fill. */
export function clearRows(to: usize, n: i32): void {
  const zero = f32x4.splat(0);
  for (let r = 0; r < n; r++) {
    for (let d = 0; d < dim; d += 8) {
      v128.store(to + (d << 2), zero);
      v128.store(to + (d << 2), zero, 16);
    }
    to += LD;
  }
}

/** Arranges n rows of scratch in panels of eight columns. */
export function panelsOfRows(rows: usize, n: i32, panels: usize): void {
  const stride = panelBytes(n, 8);
  for (let r = 0; r < n; r++) {
    let to = panels + ((<usize>r) << 5);
    for (let d = 0; d < dim; d += 8) {
      v128.store(to, v128.load(rows + (d << 2)));
      v128.store(to, v128.load(rows + (d << 2), 16), 16);
      to += stride;
    }
    rows += LD;
  }
}

export function storeRows(from: usize, n: i32, base: usize, at: u32, row: u32): void {
  for (let r = 0; r < n; r++) {
    narrow(from + <usize>r * LD, base, dtype, at + <u32>r * row, dim);
  }
}

/** Stores a row of scratch, multiplied by `by`. */
export function storeScaled(from: usize, by: f32, base: usize, at: u32): void {
  const factor = f32x4.splat(by);
  const to = target(base, dtype, at, from);
  const end = from + ((<usize>(dim & ~3)) << 2);
  let out = to;
  for (; from < end; from += 16, out += 16) {
    v128.store(out, f32x4.mul(v128.load(from), factor));
  }
  if ((dim & 3) != 0) {
    storePartial(out, f32x4.mul(v128.load(from), factor), dim & 3);
  }
  narrow(to, base, dtype, at, dim);
}
