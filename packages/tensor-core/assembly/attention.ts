// Attention and its gradients in blocks of 64 queries by 64 keys (Dao, "FlashAttention-2", 2023). A
// thread takes blocks of queries forward; backward it takes all of one head of keys, and adds to dq as
// it goes, so that scores are computed once. Sums depend on shapes alone, never on the split.
//
// Note [hidden keys]: the weight of a hidden key is 0, but 0 times NaN is NaN. Where part of a block is
// hidden and an operand of it is not finite, the products go element by element and pass hidden ones over.

import { laneMask, narrow, widen } from './convert';
import { philox16 } from './dropout';
import { BLOCK_BYTES } from './elementwise';
import { madd } from './fuse';
import { F32 } from './layout';
import { exp4 } from './math';
import { packTransposed, panelBytes } from './pack';
import { sumLanes } from './reduce';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';
import { dot } from './softmax';

/** Queries and keys of a block. */
const ROWS: i32 = 64;
const KEYS: i32 = 64;
/** Bytes from row to row of every block in scratch: the widest head and an edge, no power of two. */
const LD: usize = 1088;
const BLOCK_ROWS: usize = <usize>ROWS * LD;
/** Panels of eight keys: the widest head. */
const PANELS: usize = 8 * (256 * 8 * 4 + 64);

// Behind the four blocks that packing uses.
const Q_AT: usize = BLOCK_BYTES * 4;
const DOUT_AT: usize = Q_AT + BLOCK_ROWS;
const K_AT: usize = DOUT_AT + BLOCK_ROWS;
const V_AT: usize = K_AT + BLOCK_ROWS;
/** Scores, which become weights or their gradients in place. */
const S_AT: usize = V_AT + BLOCK_ROWS;
const P_AT: usize = S_AT + BLOCK_ROWS;
/** Forward: results before their division. Backward: what is added to dq. */
const OUT_AT: usize = P_AT + BLOCK_ROWS;
const DK_AT: usize = OUT_AT + BLOCK_ROWS;
const DV_AT: usize = DK_AT + BLOCK_ROWS;
const K_PANELS_AT: usize = DV_AT + BLOCK_ROWS;
const V_PANELS_AT: usize = K_PANELS_AT + PANELS;
/** By row: the largest score, the sum of exponentials, whether it has seen a key. */
const MOST_AT: usize = V_PANELS_AT + PANELS;
const SUM_AT: usize = MOST_AT + ROWS * 4;
const SEEN_AT: usize = SUM_AT + ROWS * 4;
/** By four rows: the keys of the block from and to which one of them sees, in whole panels. */
const FROM_AT: usize = SEEN_AT + ROWS * 4;
const TO_AT: usize = FROM_AT + ROWS;
/** What one row needs: the mask's values, and random words. */
const MASK_AT: usize = TO_AT + ROWS;
const WORDS_AT: usize = MASK_AT + KEYS * 4 + 64;

const SMALLEST: f32 = -Infinity;

// The call that this thread works on.
let dtype: i32 = 0;
let qBase: usize = 0;
let kBase: usize = 0;
let vBase: usize = 0;
let outBase: usize = 0;
let lseBase: usize = 0;
let maskBase: usize = 0;
let maskType: i32 = 0;
let querySegments: usize = 0;
let keySegments: usize = 0;
let heads: u32 = 0;
let kvHeads: u32 = 0;
let queries: u32 = 0;
let keys: u32 = 0;
let dim: i32 = 0;
let scale: f32 = 1;
let isCausal: bool = false;
let window: i32 = 0;
let queryOffset: i32 = 0;
let outRow: u32 = 0;
let maskRow: u32 = 0;
let maskColumn: u32 = 0;
let threshold: i32 = 0;
let keptScale: f32 = 1;
let key0: u32 = 0;
let key1: u32 = 0;
let counter: u64 = 0;
let hasDropout: bool = false;
/** The current head: first elements of its operands, ids and mask, and its first row among all. */
let qAt: u32 = 0;
let kAt: u32 = 0;
let vAt: u32 = 0;
let outAt: u32 = 0;
let maskAt: u32 = 0;
let firstRow: u32 = 0;
let queryIds: usize = 0;
let keyIds: usize = 0;
// The current block.
let row0: u32 = 0;
let numRows: i32 = 0;
let key0At: u32 = 0;
let numKeys: i32 = 0;
/** Whether a row of it does not see all keys of it. */
let isPartial: bool = false;

/**
 * args: dtype, q, k, v, out, stats, mask, its dtype, query segments, key segments, batch, heads, kv heads,
 * queries, keys, dim, scale, isCausal, window, query offset, strides (batch, head, row) of q, of k, of v,
 * of the mask (and column), dropout's threshold, scale of the kept (0: no dropout), key0, key1, counter
 * low, high.
 */
function open(slot: usize): void {
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
  heads = arg(slot, 11);
  kvHeads = arg(slot, 12);
  queries = arg(slot, 13);
  keys = arg(slot, 14);
  dim = argI(slot, 15);
  scale = argF(slot, 16);
  isCausal = argI(slot, 17) != 0;
  window = argI(slot, 18);
  queryOffset = argI(slot, 19);
  outRow = heads * <u32>dim;
  maskRow = arg(slot, 31);
  maskColumn = arg(slot, 32);
  threshold = argI(slot, 33);
  keptScale = argF(slot, 34);
  hasDropout = keptScale != 0;
  key0 = arg(slot, 35);
  key1 = arg(slot, 36);
  counter = (<u64>arg(slot, 38) << 32) | <u64>arg(slot, 37);
}

function openHead(slot: usize, b: u32, head: u32): void {
  const kvHead = head / (heads / kvHeads);
  qAt = b * arg(slot, 20) + head * arg(slot, 21);
  kAt = b * arg(slot, 23) + kvHead * arg(slot, 24);
  vAt = b * arg(slot, 26) + kvHead * arg(slot, 27);
  maskAt = b * arg(slot, 29) + head * arg(slot, 30);
  outAt = b * queries * outRow + head * <u32>dim;
  firstRow = (b * heads + head) * queries;
  queryIds = querySegments + ((<usize>(b * queries)) << 2);
  keyIds = keySegments + ((<usize>(b * keys)) << 2);
}

export function attention(slot: usize, chunk: u32, chunks: u32): void {
  open(slot);
  const blocks = (queries + ROWS - 1) / ROWS;
  const units = arg(slot, 10) * heads * blocks;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let unit = chunkStart(units, chunk, chunks, 1); unit < end; unit++) {
    const head = unit / blocks;
    openHead(slot, head / heads, head % heads);
    openRows(unit % blocks);
    forwardRows(arg(slot, 22), arg(slot, 25), arg(slot, 28));
  }
}

function openRows(block: u32): void {
  row0 = block * ROWS;
  numRows = <i32>min<u32>(ROWS, queries - row0);
}

function openKeys(first: u32): void {
  key0At = first;
  numKeys = <i32>min<u32>(KEYS, keys - first);
}

/** One block of queries with all keys that it sees. */
function forwardRows(qRow: u32, kRow: u32, vRow: u32): void {
  const q = scratchBase + Q_AT;
  const s = scratchBase + S_AT;
  const out = scratchBase + OUT_AT;
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, q, scale);
  memory.fill(out, 0, <usize>((numRows + 3) & ~3) * LD);
  for (let r = 0; r < numRows; r++) {
    store<f32>(scratchBase + MOST_AT + (r << 2), SMALLEST);
    store<f32>(scratchBase + SUM_AT + (r << 2), 0);
    store<u32>(scratchBase + SEEN_AT + (r << 2), 0);
  }
  const last = hiOf(row0 + <u32>numRows - 1);
  for (let first = loOf(row0) & ~(KEYS - 1); first < last; first += KEYS) {
    openKeys(first);
    if (!sharesSegment()) {
      continue;
    }
    findRanges();
    packTransposed(kBase, dtype, kAt + first * kRow, kRow, dim, numKeys, 8, scratchBase + K_PANELS_AT);
    rowProducts(q, scratchBase + K_PANELS_AT, s);
    for (let r = 0; r < numRows; r++) {
      weigh(r);
    }
    const v = scratchBase + V_AT;
    loadRows(vBase, vAt + first * vRow, vRow, numKeys, v, 1);
    if (isPartial && !isFiniteBlock(v, numKeys)) {
      carefulRows(s, v, out);
    } else {
      keyProducts(s, v, out, true);
    }
  }
  finishRows();
}

/** Divides by the sums and stores results and log-sum-exps. */
function finishRows(): void {
  for (let r = 0; r < numRows; r++) {
    const most = load<f32>(scratchBase + MOST_AT + (r << 2));
    const sum = load<f32>(scratchBase + SUM_AT + (r << 2));
    const seen = load<u32>(scratchBase + SEEN_AT + (r << 2)) != 0;
    const out = scratchBase + OUT_AT + <usize>r * LD;
    let inverse: f32 = 0;
    let lse: f32 = SMALLEST;
    if (seen) {
      // A row whose scores are all -infinity has no largest one to take out.
      inverse = most == SMALLEST ? NaN : 1 / sum;
      lse = most == SMALLEST ? NaN : <f32>(<f64>most + Math.log(<f64>sum));
    }
    const f = f32x4.splat(inverse);
    for (let d = 0; d < dim; d += 4) {
      const o = out + (d << 2);
      v128.store(o, seen ? f32x4.mul(v128.load(o), f) : f32x4.splat(0));
    }
    narrow(out, outBase, dtype, outAt + (row0 + <u32>r) * outRow, dim);
    store<f32>(lseBase + ((<usize>(firstRow + row0 + <u32>r)) << 2), lse);
  }
}

/** Row r of the block: scores become weights, and what was summed before is brought to the new maximum. */
function weigh(r: i32): void {
  const from = load<u8>(scratchBase + FROM_AT + (r >> 2));
  const to = load<u8>(scratchBase + TO_AT + (r >> 2));
  const s = scratchBase + S_AT + <usize>r * LD;
  const row = row0 + <u32>r;
  let seen = i32x4.splat(-1);
  let m = f32x4.splat(SMALLEST);
  prepareRow(row);
  // A NaN need not show here: it comes back in the sum of exponentials.
  if (seesAll) {
    for (let j: i32 = from; j < <i32>to; j += 8) {
      const o = s + (j << 2);
      m = f32x4.pmax(m, f32x4.pmax(v128.load(o), v128.load(o, 16)));
    }
  } else {
    seen = i32x4.splat(0);
    for (let j: i32 = from; j < <i32>to; j += 4) {
      const o = s + (j << 2);
      const visible = visible4(j);
      const v = v128.bitselect(scored4(o, j), f32x4.splat(SMALLEST), visible);
      seen = v128.or(seen, visible);
      m = f32x4.pmax(m, v);
      v128.store(o, v);
    }
  }
  const mostAt = scratchBase + MOST_AT + (r << 2);
  const sumAt = scratchBase + SUM_AT + (r << 2);
  const before = load<f32>(mostAt);
  const most = max<f32>(before, maxLanes(m));
  const shift: f32 = most == SMALLEST ? 0 : most;
  const shift4 = f32x4.splat(shift);
  let sums = f32x4.splat(0);
  for (let j: i32 = from; j < <i32>to; j += 8) {
    const o = s + (j << 2);
    const low = exp4(f32x4.sub(v128.load(o), shift4));
    const high = exp4(f32x4.sub(v128.load(o, 16), shift4));
    sums = f32x4.add(sums, f32x4.add(low, high));
    v128.store(o, low);
    v128.store(o, high, 16);
  }
  if (hasDropout) {
    drawWords(row, from, to);
    for (let j: i32 = from; j < <i32>to; j += 4) {
      const o = s + (j << 2);
      const kept = f32x4.mul(v128.load(o), f32x4.splat(keptScale));
      v128.store(o, v128.and(kept, kept4(j)));
    }
  }
  const sum = sumLanes(sums);
  if (v128.any_true(seen)) {
    store<u32>(scratchBase + SEEN_AT + (r << 2), 1);
  }
  store<f32>(mostAt, most);
  if (before == most || before == SMALLEST) {
    store<f32>(sumAt, load<f32>(sumAt) + sum);
    return;
  }
  const factor = f32x4.extract_lane(exp4(f32x4.splat(before - most)), 0);
  store<f32>(sumAt, load<f32>(sumAt) * factor + sum);
  const f = f32x4.splat(factor);
  const out = scratchBase + OUT_AT + <usize>r * LD;
  for (let d = 0; d < dim; d += 4) {
    v128.store(out + (d << 2), f32x4.mul(v128.load(out + (d << 2)), f));
  }
}

/** args of backward, beside those of `open`: dOut, dq, dk, dv, f32 rows of dq for each chunk or 0. */
const ARG_DOUT: i32 = 39;
const ARG_DQ: i32 = 40;
const ARG_DK: i32 = 41;
const ARG_DV: i32 = 42;
const ARG_TEMP: i32 = 43;

let dOutBase: usize = 0;
let deltaBase: usize = 0;
/** f32 rows that dq is added up in, and their distance: dq itself where it is f32. */
let dqBase: usize = 0;
let dqStep: usize = 0;

export function attentionBackward(slot: usize, chunk: u32, chunks: u32): void {
  open(slot);
  dOutBase = <usize>arg(slot, ARG_DOUT);
  deltaBase = lseBase + ((<usize>(arg(slot, 10) * heads * queries)) << 2);
  const units = arg(slot, 10) * kvHeads;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let unit = chunkStart(units, chunk, chunks, 1); unit < end; unit++) {
    backwardHead(slot, unit / kvHeads, unit % kvHeads, chunk);
  }
}

/** Where the rows of a query head's dq are added up. */
function openDq(slot: usize, member: u32, chunk: u32): void {
  if (dtype == F32) {
    dqBase = <usize>arg(slot, ARG_DQ) + ((<usize>qAt) << 2);
    dqStep = (<usize>arg(slot, 22)) << 2;
    return;
  }
  dqStep = (<usize>((dim + 7) & ~7)) << 2;
  const rows = <usize>queries * (heads / kvHeads);
  dqBase = <usize>arg(slot, ARG_TEMP) + (<usize>chunk * rows + <usize>member * queries) * dqStep;
}

/** All gradients of one head of keys and of the query heads that share it. */
function backwardHead(slot: usize, b: u32, kvHead: u32, chunk: u32): void {
  const group = heads / kvHeads;
  const head0 = kvHead * group;
  const kRow = arg(slot, 25);
  const vRow = arg(slot, 28);
  for (let member: u32 = 0; member < group; member++) {
    openHead(slot, b, head0 + member);
    openDq(slot, member, chunk);
    for (let row: u32 = 0; row < queries; row++) {
      memory.fill(dqBase + <usize>row * dqStep, 0, (<usize>dim) << 2);
      const at = outAt + row * outRow;
      const slope = widen(dOutBase, dtype, at, dim, scratchBase);
      const result = widen(outBase, dtype, at, dim, scratchBase + BLOCK_BYTES);
      store<f32>(deltaBase + ((<usize>(firstRow + row)) << 2), dot(slope, result, dim));
    }
  }
  const dk = scratchBase + DK_AT;
  const dv = scratchBase + DV_AT;
  for (let first: u32 = 0; first < keys; first += KEYS) {
    openKeys(first);
    packTransposed(kBase, dtype, kAt + first * kRow, kRow, dim, numKeys, 8, scratchBase + K_PANELS_AT);
    packTransposed(vBase, dtype, vAt + first * vRow, vRow, dim, numKeys, 8, scratchBase + V_PANELS_AT);
    loadRows(kBase, kAt + first * kRow, kRow, numKeys, scratchBase + K_AT, 1);
    memory.fill(dk, 0, BLOCK_ROWS);
    memory.fill(dv, 0, BLOCK_ROWS);
    for (let member: u32 = 0; member < group; member++) {
      openHead(slot, b, head0 + member);
      openDq(slot, member, chunk);
      for (let block: u32 = 0; block * ROWS < queries; block++) {
        openRows(block);
        if (loOf(row0) < first + <u32>numKeys && hiOf(row0 + <u32>numRows - 1) > first && sharesSegment()) {
          backwardBlock(arg(slot, 22));
        }
      }
    }
    storeRows(dk, <usize>arg(slot, ARG_DK), kAt + first * kRow, kRow);
    storeRows(dv, <usize>arg(slot, ARG_DV), vAt + first * vRow, vRow);
  }
  if (dtype == F32) {
    return;
  }
  for (let member: u32 = 0; member < group; member++) {
    openHead(slot, b, head0 + member);
    openDq(slot, member, chunk);
    for (let row: u32 = 0; row < queries; row++) {
      narrow(dqBase + <usize>row * dqStep, <usize>arg(slot, ARG_DQ), dtype, qAt + row * arg(slot, 22), dim);
    }
  }
}

function backwardBlock(qRow: u32): void {
  const k = scratchBase + K_AT;
  const q = scratchBase + Q_AT;
  const dOut = scratchBase + DOUT_AT;
  const s = scratchBase + S_AT;
  const p = scratchBase + P_AT;
  const dq = scratchBase + OUT_AT;
  findRanges();
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, q, scale);
  loadRows(dOutBase, outAt + row0 * outRow, outRow, numRows, dOut, 1);
  rowProducts(q, scratchBase + K_PANELS_AT, s);
  rowProducts(dOut, scratchBase + V_PANELS_AT, p);
  for (let r = 0; r < numRows; r++) {
    slopeRow(r);
  }
  if (isPartial && !isFiniteBlock(dOut, numRows)) {
    carefulColumns(p, dOut, scratchBase + DV_AT);
  } else {
    columnProducts(p, dOut, scratchBase + DV_AT);
  }
  if (isPartial && !isFiniteBlock(q, numRows)) {
    carefulColumns(s, q, scratchBase + DK_AT);
  } else {
    columnProducts(s, q, scratchBase + DK_AT);
  }
  if (isPartial && !isFiniteBlock(k, numKeys)) {
    memory.fill(dq, 0, <usize>numRows * LD);
    carefulRows(s, k, dq);
  } else {
    keyProducts(s, k, dq, false);
  }
  const f = f32x4.splat(scale);
  for (let r = 0; r < numRows; r++) {
    const to = dqBase + <usize>(row0 + <u32>r) * dqStep;
    const from = dq + <usize>r * LD;
    let d = 0;
    for (; d + 4 <= dim; d += 4) {
      const o = to + (d << 2);
      v128.store(o, f32x4.add(v128.load(o), f32x4.mul(v128.load(from + (d << 2)), f)));
    }
    for (; d < dim; d++) {
      const o = to + (d << 2);
      store<f32>(o, load<f32>(o) + load<f32>(from + (d << 2)) * scale);
    }
  }
}

/** Row r: from scores in S and products with dOut in P to the scores' gradients in S, used weights in P. */
function slopeRow(r: i32): void {
  const from = load<u8>(scratchBase + FROM_AT + (r >> 2));
  const to = load<u8>(scratchBase + TO_AT + (r >> 2));
  const row = row0 + <u32>r;
  const s = scratchBase + S_AT + <usize>r * LD;
  const p = scratchBase + P_AT + <usize>r * LD;
  const lse = f32x4.splat(load<f32>(lseBase + ((<usize>(firstRow + row)) << 2)));
  const delta = f32x4.splat(load<f32>(deltaBase + ((<usize>(firstRow + row)) << 2)));
  prepareRow(row);
  if (seesAll && !hasDropout) {
    for (let j: i32 = from; j < <i32>to; j += 8) {
      const o = j << 2;
      const low = exp4(f32x4.sub(v128.load(s + o), lse));
      const high = exp4(f32x4.sub(v128.load(s + o, 16), lse));
      const lowSlope = f32x4.sub(v128.load(p + o), delta);
      const highSlope = f32x4.sub(v128.load(p + o, 16), delta);
      v128.store(p + o, low);
      v128.store(p + o, high, 16);
      v128.store(s + o, f32x4.mul(low, lowSlope));
      v128.store(s + o, f32x4.mul(high, highSlope), 16);
    }
    return;
  }
  if (hasDropout) {
    drawWords(row, from, to);
  }
  for (let j: i32 = from; j < <i32>to; j += 4) {
    const o = j << 2;
    const visible = visible4(j);
    const weight = v128.and(exp4(f32x4.sub(scored4(s + o, j), lse)), visible);
    let slope = v128.load(p + o);
    let used = weight;
    if (hasDropout) {
      const kept = kept4(j);
      slope = v128.and(f32x4.mul(slope, f32x4.splat(keptScale)), kept);
      used = v128.and(f32x4.mul(weight, f32x4.splat(keptScale)), kept);
    }
    v128.store(p + o, used);
    v128.store(s + o, v128.and(f32x4.mul(weight, f32x4.sub(slope, delta)), visible));
  }
}

// ---- which keys a row sees ---------------------------------------------------------------------

/** First key that positions let the row see. */
function loOf(row: u32): u32 {
  if (window == 0) {
    return 0;
  }
  const lo = queryOffset + <i32>row - window + 1;
  return <u32>min<i32>(max<i32>(lo, 0), <i32>keys);
}

/** One more than the last. */
function hiOf(row: u32): u32 {
  const at = queryOffset + <i32>row;
  let hi = <i32>keys;
  if (isCausal) {
    hi = at + 1;
  } else if (window != 0) {
    hi = at + window;
  }
  return <u32>min<i32>(max<i32>(hi, 0), <i32>keys);
}

/** Ranges of fours of rows in the current block, and whether anything of it is hidden. */
function findRanges(): void {
  isPartial = querySegments != 0 || maskBase != 0 || numKeys < KEYS;
  for (let r = 0; r < numRows; r += 4) {
    const last = min(r + 3, numRows - 1);
    const lo = inBlock(loOf(row0 + <u32>r));
    const hi = inBlock(hiOf(row0 + <u32>last));
    isPartial = isPartial || inBlock(loOf(row0 + <u32>last)) > 0 || inBlock(hiOf(row0 + <u32>r)) < numKeys;
    store<u8>(scratchBase + FROM_AT + (r >> 2), <u8>(min(lo, hi) & ~7));
    store<u8>(scratchBase + TO_AT + (r >> 2), <u8>((hi + 7) & ~7));
  }
}

@inline
function inBlock(key: u32): i32 {
  return min<i32>(max<i32>(<i32>key - <i32>key0At, 0), numKeys);
}

/** Whether the block's queries and keys have an id in common, as far as their extremes tell. */
function sharesSegment(): bool {
  if (querySegments == 0) {
    return true;
  }
  const ids = queryIds + ((<usize>row0) << 2);
  const others = keyIds + ((<usize>key0At) << 2);
  return !(mostOf(ids, numRows) < leastOf(others, numKeys) || leastOf(ids, numRows) > mostOf(others, numKeys));
}

function mostOf(ids: usize, n: i32): i32 {
  let most = load<i32>(ids);
  for (let i = 1; i < n; i++) {
    most = max<i32>(most, load<i32>(ids + (i << 2)));
  }
  return most;
}

function leastOf(ids: usize, n: i32): i32 {
  let least = load<i32>(ids);
  for (let i = 1; i < n; i++) {
    least = min<i32>(least, load<i32>(ids + (i << 2)));
  }
  return least;
}

// What prepareRow finds for the row that is worked on.
let rowLo: i32 = 0;
let rowHi: i32 = 0;
let rowId: i32 = 0;
let rowMask: usize = 0;
/** Whether all of the block's panels that the row visits are seen. */
let seesAll: bool = false;

function prepareRow(row: u32): void {
  rowLo = inBlock(loOf(row));
  rowHi = inBlock(hiOf(row));
  const r = <i32>(row - row0);
  const from: i32 = load<u8>(scratchBase + FROM_AT + (r >> 2));
  const to: i32 = load<u8>(scratchBase + TO_AT + (r >> 2));
  seesAll = querySegments == 0 && maskBase == 0 && rowLo <= from && rowHi >= to;
  if (querySegments != 0) {
    rowId = load<i32>(queryIds + ((<usize>row) << 2));
  }
  if (maskBase != 0) {
    const at = maskAt + row * maskRow;
    const values = scratchBase + MASK_AT;
    if (maskColumn == 0) {
      const one = f32x4.splat(load<f32>(widen(maskBase, maskType, at, 1, scratchBase)));
      for (let j = 0; j < KEYS; j += 4) {
        v128.store(values + (j << 2), one);
      }
      rowMask = values;
    } else {
      rowMask = widen(maskBase, maskType, at + key0At, numKeys, values);
    }
  }
}

/** Four scores of the prepared row, the mask added. */
@inline
function scored4(score: usize, j: i32): v128 {
  const s = v128.load(score);
  return maskBase == 0 ? s : f32x4.add(s, v128.load(rowMask + (j << 2)));
}

/** All bits set in the lanes of keys j to j + 3 of the block that the prepared row sees. */
@inline
function visible4(j: i32): v128 {
  if (seesAll) {
    return i32x4.splat(-1);
  }
  const index = i32x4.add(i32x4.splat(j), i32x4(0, 1, 2, 3));
  let visible = v128.and(
    i32x4.ge_s(index, i32x4.splat(rowLo)),
    i32x4.lt_s(index, i32x4.splat(rowHi)),
  );
  if (querySegments != 0) {
    const ids = v128.load(keyIds + ((<usize>(key0At + <u32>j)) << 2));
    visible = v128.and(visible, i32x4.eq(ids, i32x4.splat(rowId)));
  }
  if (maskBase != 0) {
    visible = v128.and(visible, f32x4.ne(v128.load(rowMask + (j << 2)), f32x4.splat(SMALLEST)));
  }
  return visible;
}

/** Random words of keys from to to - 1 of the block; word j stands at WORDS_AT + 4 * (j - from + lead). */
let wordsAt: usize = 0;

function drawWords(row: u32, from: i32, to: i32): void {
  const first = counter + <u64>(firstRow + row) * <u64>keys + <u64>key0At + <u64>from;
  const lead = <i32>(first & 3);
  const words = scratchBase + WORDS_AT;
  for (let i = 0; i < to - from + lead; i += 16) {
    philox16((first >> 2) + <u64>(i >> 2), key0, key1, words + (i << 2));
  }
  wordsAt = words + ((<usize>lead) << 2) - ((<usize>from) << 2);
}

@inline
function kept4(j: i32): v128 {
  return i32x4.ge_u(v128.load(wordsAt + (j << 2)), i32x4.splat(threshold));
}

// ---- products ----------------------------------------------------------------------------------

/** out[r][j] = rows[r] . panel column j, for the panels that each four rows see. */
function rowProducts(rows: usize, panels: usize, out: usize): void {
  const stride = panelBytes(dim, 8);
  for (let r = 0; r < numRows; r += 4) {
    const to: i32 = load<u8>(scratchBase + TO_AT + (r >> 2));
    const a = rows + <usize>r * LD;
    const c = out + <usize>r * LD;
    for (let j: i32 = load<u8>(scratchBase + FROM_AT + (r >> 2)); j < to; j += 8) {
      rowTile(a, panels + <usize>(j >> 3) * stride, 32, dim, c + (j << 2), false);
    }
  }
}

/** out[r] (+)= sum over keys of weights[r][key] * values[key], for the keys that each four rows see. */
function keyProducts(weights: usize, values: usize, out: usize, add: bool): void {
  for (let r = 0; r < numRows; r += 4) {
    const from: i32 = load<u8>(scratchBase + FROM_AT + (r >> 2));
    const to = min<i32>(load<u8>(scratchBase + TO_AT + (r >> 2)), numKeys);
    const a = weights + <usize>r * LD + (from << 2);
    const b = values + <usize>from * LD;
    for (let d = 0; d < dim; d += 8) {
      const c = out + <usize>r * LD + (d << 2);
      rowTile(a, b + (d << 2), LD, to - from, c, add);
    }
  }
}

/** out[key] += sum over rows of weights[row][key] * values[row], for the rows that see each panel. */
function columnProducts(weights: usize, values: usize, out: usize): void {
  for (let j = 0; j < numKeys; j += 8) {
    let first = 0;
    while (first < numRows && !visits(first, j)) first += 4;
    let last = first;
    while (last < numRows && visits(last, j)) last += 4;
    const count = min(last, numRows) - first;
    if (count <= 0) {
      continue;
    }
    const a = weights + <usize>first * LD + (j << 2);
    const b = values + <usize>first * LD;
    for (let half = 0; half < 8; half += 4) {
      for (let d = 0; d < dim; d += 8) {
        columnTile(a + (half << 2), b + (d << 2), count, out + <usize>(j + half) * LD + (d << 2));
      }
    }
  }
}

@inline
function visits(r: i32, j: i32): bool {
  return j >= <i32>load<u8>(scratchBase + FROM_AT + (r >> 2)) && j < <i32>load<u8>(scratchBase + TO_AT + (r >> 2));
}

/** c (+)= a x b, 4 x 8: a in rows LD apart, b in rows `step` apart. */
function rowTile(a: usize, b: usize, step: usize, k: i32, c: usize, add: bool): void {
  let c00 = f32x4.splat(0);
  let c01 = f32x4.splat(0);
  let c10 = f32x4.splat(0);
  let c11 = f32x4.splat(0);
  let c20 = f32x4.splat(0);
  let c21 = f32x4.splat(0);
  let c30 = f32x4.splat(0);
  let c31 = f32x4.splat(0);
  const end = a + ((<usize>k) << 2);
  while (a < end) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const s0 = v128.load_splat<f32>(a);
    c00 = madd(s0, b0, c00);
    c01 = madd(s0, b1, c01);
    const s1 = v128.load_splat<f32>(a, LD);
    c10 = madd(s1, b0, c10);
    c11 = madd(s1, b1, c11);
    const s2 = v128.load_splat<f32>(a, LD * 2);
    c20 = madd(s2, b0, c20);
    c21 = madd(s2, b1, c21);
    const s3 = v128.load_splat<f32>(a, LD * 3);
    c30 = madd(s3, b0, c30);
    c31 = madd(s3, b1, c31);
    a += 4;
    b += step;
  }
  storeTile(c00, c01, c, add);
  storeTile(c10, c11, c + LD, add);
  storeTile(c20, c21, c + LD * 2, add);
  storeTile(c30, c31, c + LD * 3, add);
}

/** c += transposed a x b, 4 x 8: a and b in rows LD apart. */
function columnTile(a: usize, b: usize, k: i32, c: usize): void {
  let c00 = f32x4.splat(0);
  let c01 = f32x4.splat(0);
  let c10 = f32x4.splat(0);
  let c11 = f32x4.splat(0);
  let c20 = f32x4.splat(0);
  let c21 = f32x4.splat(0);
  let c30 = f32x4.splat(0);
  let c31 = f32x4.splat(0);
  const end = a + <usize>k * LD;
  while (a < end) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const s0 = v128.load_splat<f32>(a);
    c00 = madd(s0, b0, c00);
    c01 = madd(s0, b1, c01);
    const s1 = v128.load_splat<f32>(a, 4);
    c10 = madd(s1, b0, c10);
    c11 = madd(s1, b1, c11);
    const s2 = v128.load_splat<f32>(a, 8);
    c20 = madd(s2, b0, c20);
    c21 = madd(s2, b1, c21);
    const s3 = v128.load_splat<f32>(a, 12);
    c30 = madd(s3, b0, c30);
    c31 = madd(s3, b1, c31);
    a += LD;
    b += LD;
  }
  storeTile(c00, c01, c, true);
  storeTile(c10, c11, c + LD, true);
  storeTile(c20, c21, c + LD * 2, true);
  storeTile(c30, c31, c + LD * 3, true);
}

@inline
function storeTile(low: v128, high: v128, to: usize, add: bool): void {
  v128.store(to, add ? f32x4.add(v128.load(to), low) : low);
  v128.store(to, add ? f32x4.add(v128.load(to, 16), high) : high, 16);
}

// ---- blocks with NaN or infinities: see Note [hidden keys] ----------------------------------------

function isFiniteBlock(rows: usize, n: i32): bool {
  let sum = f32x4.splat(0);
  for (let r = 0; r < n; r++) {
    for (let d = 0; d < dim; d += 4) {
      const v = f32x4.mul(v128.load(rows + <usize>r * LD + (d << 2)), f32x4.splat(0));
      sum = f32x4.add(sum, d + 4 <= dim ? v : v128.and(v, laneMask(dim - d)));
    }
  }
  return i32x4.all_true(f32x4.eq(sum, f32x4.splat(0)));
}

/** Whether the prepared row sees key j of the panels that it visits. */
function sees(j: i32): bool {
  return (i32x4.extract_lane(visible4(j), 0) & 1) != 0;
}

function carefulRows(weights: usize, values: usize, out: usize): void {
  for (let r = 0; r < numRows; r++) {
    prepareRow(row0 + <u32>r);
    const to = min<i32>(load<u8>(scratchBase + TO_AT + (r >> 2)), numKeys);
    for (let j: i32 = load<u8>(scratchBase + FROM_AT + (r >> 2)); j < to; j++) {
      if (sees(j)) {
        const w = f32x4.splat(load<f32>(weights + <usize>r * LD + (j << 2)));
        addScaled(out + <usize>r * LD, values + <usize>j * LD, w);
      }
    }
  }
}

function carefulColumns(weights: usize, values: usize, out: usize): void {
  for (let r = 0; r < numRows; r++) {
    prepareRow(row0 + <u32>r);
    const to = min<i32>(load<u8>(scratchBase + TO_AT + (r >> 2)), numKeys);
    for (let j: i32 = load<u8>(scratchBase + FROM_AT + (r >> 2)); j < to; j++) {
      if (sees(j)) {
        const w = f32x4.splat(load<f32>(weights + <usize>r * LD + (j << 2)));
        addScaled(out + <usize>j * LD, values + <usize>r * LD, w);
      }
    }
  }
}

@inline
function addScaled(out: usize, values: usize, w: v128): void {
  for (let d = 0; d < dim; d += 4) {
    const o = out + (d << 2);
    v128.store(o, madd(w, v128.load(values + (d << 2)), v128.load(o)));
  }
}

// ---- rows in and out ---------------------------------------------------------------------------

/**
 * Rows of an operand as f32 times `factor`, LD apart. Read where they lie, thousands of bytes apart, the
 * rows of a fused projection would fight for the same few cache sets.
 */
function loadRows(base: usize, at: u32, row: u32, n: i32, to: usize, factor: f32): void {
  const f = f32x4.splat(factor);
  for (let r = 0; r < n; r++) {
    const from = widen(base, dtype, at + <u32>r * row, dim, scratchBase);
    for (let d = 0; d < dim; d += 4) {
      v128.store(to + (d << 2), f32x4.mul(v128.load(from + (d << 2)), f));
    }
    to += LD;
  }
}

function storeRows(from: usize, base: usize, at: u32, row: u32): void {
  for (let r = 0; r < numKeys; r++) {
    narrow(from + <usize>r * LD, base, dtype, at + <u32>r * row, dim);
  }
}

@inline
function maxLanes(v: v128): f32 {
  const low = max<f32>(f32x4.extract_lane(v, 0), f32x4.extract_lane(v, 1));
  return max<f32>(low, max<f32>(f32x4.extract_lane(v, 2), f32x4.extract_lane(v, 3)));
}
