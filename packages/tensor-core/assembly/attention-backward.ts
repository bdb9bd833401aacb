// These kernels compute the gradients of attention. A unit of work is one head of keys or, where
// there are few such heads, one part of it: every parts-th block of keys. For each block of keys a
// thread goes over all blocks of queries that see it and adds to dq as it goes, so that the scores
// are computed only once. The number of parts follows from the call's shape, not from the number of
// threads, and the dq of parts is added in their order, so results depend on shapes alone.

import {
  BACKWARD_KEYS,
  BACKWARD_ROWS,
  batch,
  clearRows,
  DK_AT,
  DOUT_AT,
  DOUT_PANELS_AT,
  DV_AT,
  dim,
  dtype,
  firstRow,
  hasDropout,
  heads,
  isNative,
  K_ACROSS_AT,
  K_PANELS_AT,
  kAt,
  key0At,
  kBase,
  keptScale,
  keys,
  kRow,
  kvHeads,
  loadRows,
  lseBase,
  numKeys,
  numRows,
  OUT_AT,
  open,
  openHead,
  openKeys,
  openRows,
  outAt,
  outBase,
  outRow,
  P_AT,
  panelsOfRows,
  Q_AT,
  Q_PANELS_AT,
  qAt,
  qBase,
  qRow,
  queries,
  row0,
  S_AT,
  scale,
  storeRows,
  V_ACROSS_AT,
  vAt,
  vBase,
  vRow,
} from './attention-call';
import {
  addColumns,
  clearBeside,
  findVisited,
  keyGradients,
  keyScores,
  NATIVE_ROWS,
  placeKeys,
  valueScores,
} from './attention-native';
import {
  carefulRows,
  clearUnvisited,
  columnProducts,
  keyProducts,
  mustSkip,
  rowProducts,
} from './attention-products';
import {
  drawWords,
  findRanges,
  fromOf,
  hiOf,
  isPartial,
  kept4,
  loOf,
  nextEdge,
  prepareRow,
  scored4,
  sharesSegment,
  toOf,
  visible4,
  wholeFrom,
  wholeTo,
} from './attention-visible';
import { narrow, storePartial, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { F32 } from './layout';
import { expOfNegative4 } from './math';
import { packStraight, packTransposed } from './pack';
import { LD, TILE_COLUMNS, TILE_ROWS } from './product-tile';
import { arg, chunkStart, scratchBase } from './slot';
import { dot } from './softmax';

/**
 * The arguments that follow those of `open` are dOut, dq, dk, dv, the number of parts, and the f32
 * rows in which dq is summed (0 where it needs none).
 */
const ARG_DOUT: i32 = 40;
const ARG_DQ: i32 = 41;
const ARG_DK: i32 = 42;
const ARG_DV: i32 = 43;
const ARG_PARTS: i32 = 44;
const ARG_SUMS: i32 = 45;

let dOutBase: usize = 0;
let deltaBase: usize = 0;
let dqOut: usize = 0;
let parts: u32 = 1;
let sumsBase: usize = 0;
/** The first f32 row in which the current head's dq is summed, and the bytes from row to row. */
let dqBase: usize = 0;
let dqStep: usize = 0;

/** Reads the arguments that slopesOfBlock needs. */
export function openSlopes(slot: usize): void {
  open(slot);
  dOutBase = <usize>arg(slot, ARG_DOUT);
  deltaBase = lseBase + ((<usize>(batch * heads * queries)) << 2);
}

function openBackward(slot: usize): void {
  openSlopes(slot);
  dqOut = <usize>arg(slot, ARG_DQ);
  parts = arg(slot, ARG_PARTS);
  sumsBase = <usize>arg(slot, ARG_SUMS);
}

/** Stores sum(dOut * out) of each row, which the gradient of the softmax subtracts. */
export function attentionDelta(slot: usize, chunk: u32, chunks: u32): void {
  openBackward(slot);
  const rows = batch * heads * queries;
  const end = chunkStart(rows, chunk + 1, chunks, 16);
  for (let i = chunkStart(rows, chunk, chunks, 16); i < end; i++) {
    const head = i / queries;
    const row = i % queries;
    const at = ((head / heads) * queries + row) * outRow + (head % heads) * <u32>dim;
    const slope = widen(dOutBase, dtype, at, dim, scratchBase);
    const result = widen(outBase, dtype, at, dim, scratchBase + BLOCK_BYTES);
    store<f32>(deltaBase + ((<usize>i) << 2), dot(slope, result, dim));
  }
}

export function attentionBackward(slot: usize, chunk: u32, chunks: u32): void {
  openBackward(slot);
  const units = batch * kvHeads * parts;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let unit = chunkStart(units, chunk, chunks, 1); unit < end; unit++) {
    const head = unit / parts;
    backwardHead(slot, head / kvHeads, head % kvHeads, unit % parts, chunk);
  }
}

/**
 * Makes dq of each row by adding the sums of its head's parts. It runs only where there are several
 * parts.
 */
export function attentionQueryGradient(slot: usize, chunk: u32, chunks: u32): void {
  openBackward(slot);
  const rows = batch * heads * queries;
  const end = chunkStart(rows, chunk + 1, chunks, 16);
  const own: u32 = dtype == F32 ? 1 : 0;
  const step = sumsStep();
  for (let i = chunkStart(rows, chunk, chunks, 16); i < end; i++) {
    const row = i % queries;
    openHead(slot, i / queries / heads, (i / queries) % heads);
    const at = qAt + row * qRow;
    const first = sumsBase + <usize>(i / queries * (parts - own) * queries + row) * step;
    const sum = own != 0 ? scratchBase : first;
    if (own != 0) {
      memory.copy(sum, dqOut + ((<usize>at) << 2), (<usize>dim) << 2);
    }
    for (let part: u32 = 1 - own; part < parts - own; part++) {
      const other = first + <usize>part * queries * step;
      for (let d = 0; d < dim; d += 4) {
        const o = d << 2;
        v128.store(sum + o, f32x4.add(v128.load(sum + o), v128.load(other + o)));
      }
    }
    narrow(sum, dqOut, dtype, at, dim);
  }
}

/** The bytes of one row of the sums that are kept outside dq. */
@inline
function sumsStep(): usize {
  return (<usize>((dim + 7) & ~7)) << 2;
}

/**
 * Chooses where the rows of the current query head's dq are summed: in dq itself (f32, part 0), in
 * rows of the part, or, where a head has one part, in rows of the chunk.
 */
function openDq(member: u32, part: u32, chunk: u32): void {
  const isF32 = dtype == F32;
  if (isF32 && part == 0) {
    dqBase = dqOut + ((<usize>qAt) << 2);
    dqStep = (<usize>qRow) << 2;
    return;
  }
  dqStep = sumsStep();
  const own: u32 = isF32 ? 1 : 0;
  const block = parts > 1
    ? (firstRow / queries) * (parts - own) + part - own
    : chunk * (heads / kvHeads) + member;
  dqBase = sumsBase + <usize>block * queries * dqStep;
}

/**
 * Computes the gradients of one head of keys, or of one part of its blocks, together with those of
 * all query heads that share it.
 */
function backwardHead(slot: usize, b: u32, kvHead: u32, part: u32, chunk: u32): void {
  const group = heads / kvHeads;
  const head0 = kvHead * group;
  const rows: u32 = isNative ? NATIVE_ROWS : BACKWARD_ROWS;
  openHead(slot, b, head0);
  const dk = scratchBase + DK_AT;
  const dv = scratchBase + DV_AT;
  for (let first = part * BACKWARD_KEYS; first < keys; first += parts * BACKWARD_KEYS) {
    // What was in dq before is stored over by the first block.
    const isFirst = first == part * BACKWARD_KEYS;
    openKeys(first, BACKWARD_KEYS);
    if (isNative) {
      placeKeys();
    } else {
      packKeys();
      packStraight(kBase, dtype, kAt + first * kRow, kRow, numKeys, dim, 8, scratchBase + K_PANELS_AT);
    }
    clearRows(dk, numKeys);
    clearRows(dv, numKeys);
    for (let member: u32 = 0; member < group; member++) {
      openHead(slot, b, head0 + member);
      openDq(member, part, chunk);
      for (let row: u32 = 0; row < queries; row += rows) {
        openRows(row, rows);
        if (seesBlock() && (!isNative || findVisited())) {
          if (isNative) {
            nativeBlock();
          } else {
            backwardBlock();
          }
          addToDq(scratchBase + OUT_AT, isFirst);
        } else if (isFirst) {
          clearDq();
        }
      }
    }
    storeRows(dk, numKeys, <usize>arg(slot, ARG_DK), kAt + first * kRow, kRow);
    storeRows(dv, numKeys, <usize>arg(slot, ARG_DV), vAt + first * vRow, vRow);
  }
  if (dtype == F32 || parts > 1) {
    return;
  }
  for (let member: u32 = 0; member < group; member++) {
    openHead(slot, b, head0 + member);
    openDq(member, part, chunk);
    for (let row: u32 = 0; row < queries; row++) {
      narrow(dqBase + <usize>row * dqStep, dqOut, dtype, qAt + row * qRow, dim);
    }
  }
}

/** Packs the keys and values of the block as slopesOfBlock reads them. */
export function packKeys(): void {
  const first = key0At;
  packTransposed(kBase, dtype, kAt + first * kRow, kRow, dim, numKeys, 8, scratchBase + K_ACROSS_AT);
  packTransposed(vBase, dtype, vAt + first * vRow, vRow, dim, numKeys, 8, scratchBase + V_ACROSS_AT);
}

/** Returns whether a query of the block may see one of its keys. */
export function seesBlock(): bool {
  const first = key0At;
  return loOf(row0) < first + <u32>numKeys && hiOf(row0 + <u32>numRows - 1) > first && sharesSegment();
}

/** Adds the block's parts of dk and dv, and computes that of dq into OUT. */
function backwardBlock(): void {
  const q = scratchBase + Q_AT;
  const qPanels = scratchBase + Q_PANELS_AT;
  const dOut = scratchBase + DOUT_AT;
  const dOutPanels = scratchBase + DOUT_PANELS_AT;
  const s = scratchBase + S_AT;
  const p = scratchBase + P_AT;
  slopesOfBlock(TILE_COLUMNS);
  panelsOfRows(q, numRows, qPanels);
  panelsOfRows(dOut, numRows, dOutPanels);
  columnProducts(p, dOutPanels, scratchBase + DV_AT);
  columnProducts(s, qPanels, scratchBase + DK_AT);
  const dq = scratchBase + OUT_AT;
  const keyPanels = scratchBase + K_PANELS_AT;
  if (mustSkip(keyPanels)) {
    clearRows(dq, numRows);
    carefulRows(s, keyPanels, dq);
  } else {
    for (let r = 0; r < numRows; r += TILE_ROWS) {
      keyProducts(r, s, keyPanels, dq, true);
    }
  }
}

/** Does so by a library of the host. */
function nativeBlock(): void {
  const q = scratchBase + Q_AT;
  const dOut = scratchBase + DOUT_AT;
  const s = scratchBase + S_AT;
  const p = scratchBase + P_AT;
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, q, scale);
  loadRows(dOutBase, outAt + row0 * outRow, outRow, numRows, dOut, 1);
  keyScores(q, s);
  valueScores(dOut, p);
  for (let r = 0; r < numRows; r++) {
    slopeRow(r);
    clearBeside(s, r);
    clearBeside(p, r);
  }
  addColumns(p, dOut, scratchBase + DV_AT);
  addColumns(s, q, scratchBase + DK_AT);
  keyGradients();
}

/**
 * Computes the gradients of the scores into S and the weights that were used (after dropout) into
 * P, from the packed keys and values. Both are set to 0 for the keys that a row doesn't visit, as
 * far as `margin` keys away, a multiple of 8.
 */
export function slopesOfBlock(margin: i32): void {
  const q = scratchBase + Q_AT;
  const dOut = scratchBase + DOUT_AT;
  const s = scratchBase + S_AT;
  const p = scratchBase + P_AT;
  findRanges();
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, q, scale);
  loadRows(dOutBase, outAt + row0 * outRow, outRow, numRows, dOut, 1);
  for (let r = 0; r < numRows; r += TILE_ROWS) {
    rowProducts(r, q, scratchBase + K_ACROSS_AT, s);
    rowProducts(r, dOut, scratchBase + V_ACROSS_AT, p);
    for (let i = r; i < min(r + TILE_ROWS, numRows); i++) {
      slopeRow(i);
      if (isPartial) {
        clearUnvisited(s, i, margin);
        clearUnvisited(p, i, margin);
      }
    }
  }
}

/** Clears the rows of the block in dq. */
function clearDq(): void {
  const zero = f32x4.splat(0);
  for (let r = 0; r < numRows; r++) {
    const to = dqBase + <usize>(row0 + <u32>r) * dqStep;
    let d = 0;
    for (; d + 4 <= dim; d += 4) {
      v128.store(to + (d << 2), zero);
    }
    if (d < dim) {
      storePartial(to + (d << 2), zero, dim - d);
    }
  }
}

/** Adds scale * rows to dq, or stores them there. */
function addToDq(rows: usize, isFirst: bool): void {
  const f = f32x4.splat(scale);
  for (let r = 0; r < numRows; r++) {
    const to = dqBase + <usize>(row0 + <u32>r) * dqStep;
    const from = rows + <usize>r * LD;
    let d = 0;
    for (; d + 4 <= dim; d += 4) {
      const o = to + (d << 2);
      const sum = f32x4.mul(v128.load(from + (d << 2)), f);
      v128.store(o, isFirst ? sum : f32x4.add(v128.load(o), sum));
    }
    for (; d < dim; d++) {
      const o = to + (d << 2);
      const sum = load<f32>(from + (d << 2)) * scale;
      store<f32>(o, isFirst ? sum : load<f32>(o) + sum);
    }
  }
}

/**
 * Turns row r of S from scores into the gradients of scores, and row r of P from products with dOut
 * into the weights that were used.
 */
function slopeRow(r: i32): void {
  const from = fromOf(r);
  const to = toOf(r);
  const row = row0 + <u32>r;
  const s = scratchBase + S_AT + <usize>r * LD;
  const p = scratchBase + P_AT + <usize>r * LD;
  const lse = f32x4.splat(load<f32>(lseBase + ((<usize>(firstRow + row)) << 2)));
  const delta = f32x4.splat(load<f32>(deltaBase + ((<usize>(firstRow + row)) << 2)));
  prepareRow(row);
  // Dropout leaves nothing whole.
  const start = hasDropout ? to : wholeFrom;
  const end = hasDropout ? to : wholeTo;
  if (hasDropout) {
    drawWords(row, from, to);
  }
  for (let j = start; j < end; j += 8) {
    const o = j << 2;
    const low = expOfNegative4(f32x4.sub(v128.load(s + o), lse));
    const high = expOfNegative4(f32x4.sub(v128.load(s + o, 16), lse));
    const lowSlope = f32x4.sub(v128.load(p + o), delta);
    const highSlope = f32x4.sub(v128.load(p + o, 16), delta);
    v128.store(p + o, low);
    v128.store(p + o, high, 16);
    v128.store(s + o, f32x4.mul(low, lowSlope));
    v128.store(s + o, f32x4.mul(high, highSlope), 16);
  }
  for (let j = nextEdge(from, start, end); j < to; j = nextEdge(j + 4, start, end)) {
    const o = j << 2;
    const visible = visible4(j);
    const weight = v128.and(expOfNegative4(f32x4.sub(scored4(s + o, j), lse)), visible);
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
