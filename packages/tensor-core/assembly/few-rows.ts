// These are products of few rows, such as the one of each new token when text is generated. b is
// read once, where it lies, and widened in registers, since packing it would cost more than the
// products.
//
// Note [order of b]: memory delivers whole rows of b, one after the other, two to four times as
// fast as parts of rows with gaps between them: pages follow each other, and the processor foresees
// what is read next. So few rows are multiplied with many columns at once, and threads share the
// columns of a b stored [k, n] in as few parts as possible.

import { blockDotsOf, hasBlockDots } from './block-dots';
import { decodeRun } from './blocks';
import { loadFloat, loadFour, narrow, storeFloat, widen } from './convert';
import { RowDots, rowDotsOf } from './dots';
import { BLOCK_BYTES } from './elementwise';
import { madd } from './fuse';
import {
  BF16,
  BLOCK,
  BLOCKS_IN_PRODUCT,
  BLOCKS_IN_ROUNDED_PRODUCT,
  F16,
  F32,
  MATMUL_FEW_COLUMNS,
  MATMUL_FEW_ROWS,
} from './layout';
import {
  aAt,
  aBase,
  accumulate,
  alpha,
  aRow,
  aType,
  bAt,
  bBase,
  bRow,
  BIAS_COLUMNS,
  biasBase,
  biasType,
  bType,
  depth,
  loadBias,
  outAt,
  outBase,
  outRow,
  outType,
  OWN_OFFSET,
  storeRow,
  TILE_OFFSET,
  transposeA,
  transposeB,
} from './matmul-call';
import { roundedDotsOf, roundRow } from './rounded-dots';
import { scratchBase } from './slot';

/**
 * The number of values of a row of a that are kept in f32 at once, and the bytes from row to row.
 */
const KEPT: u32 = 65536;
const A_LD: usize = <usize>KEPT * 4 + 64;
/** The place of the sums of results, and the bytes from row to row. */
const SUMS_OFFSET: usize = OWN_OFFSET + <usize>MATMUL_FEW_ROWS * A_LD;
const SUMS_LD: usize = <usize>MATMUL_FEW_COLUMNS * 4 + 64;

// These are the loops for the dtype of b. Each is a function of its own, called through a variable,
// since V8 keeps fewer values in registers where several loops share a function.
let rowDots: RowDots = rowDotsOf(F32);
let addToOne: AddToOne = addToOneF32;
let addToTwo: AddToTwo = addToTwoF32;

/** Computes the results [i0, i1) x [j0, j1) of a product of at most MATMUL_FEW_ROWS rows. */
export function fewRows(i0: u32, i1: u32, j0: u32, j1: u32): void {
  if (isRounded()) {
    roundedDots(i0, i1, j0, j1);
  } else if (transposeB && i1 - i0 == 1 && depth <= KEPT && hasDots()) {
    dotsOfOneRow(i0, j0, j1);
  } else if (transposeB) {
    dotsOfRows(i0, i1, j0, j1);
  } else {
    sumsOfRows(i0, i1, j0, j1);
  }
}

/**
 * Returns the address of values of row i of a, in f32, from column k on. openRows must have been
 * called for these columns.
 */
@inline
function rowOfA(i: u32, i0: u32, k: u32): usize {
  return liesInF32()
    ? aBase + ((<usize>(aAt + i * aRow + k)) << 2)
    : scratchBase + OWN_OFFSET + <usize>(i - i0) * A_LD;
}

@inline
function liesInF32(): bool {
  return aType == F32 && !transposeA;
}

function openRows(i0: u32, i1: u32, k: u32, n: u32): void {
  if (liesInF32()) {
    return;
  }
  for (let i = i0; i < i1; i++) {
    const row = rowOfA(i, i0, k);
    if (!transposeA) {
      widen(aBase, aType, aAt + i * aRow + k, n, row);
      continue;
    }
    for (let q: u32 = 0; q < n; q++) {
      store<f32>(row + ((<usize>q) << 2), loadFloat(aBase, aType, aAt + (k + q) * aRow + i));
    }
  }
}

@inline
function isInBlocks(): bool {
  return bType >= BLOCKS_IN_PRODUCT;
}

@inline
function isRounded(): bool {
  return bType >= BLOCKS_IN_ROUNDED_PRODUCT;
}

/** Returns whether the dots of one row read b where it lies, as they do for all but some blocks. */
@inline
function hasDots(): bool {
  return !isInBlocks() || hasBlockDots(bType - BLOCKS_IN_PRODUCT, aType);
}

/** The address of element `at` of b, or of byte `at` where b lies in blocks. */
@inline
function addressOfB(at: u32): usize {
  return bBase + ((<usize>at) << (isInBlocks() ? 0 : bType == F32 ? 2 : 1));
}

/**
 * The numbers of a run of blocks, rounded to the dtype of a, as f32. `at` is their first byte, and
 * `room` has place for them twice.
 */
function openBlocks(at: u32, n: u32, room: usize): usize {
  decodeRun(bType - BLOCKS_IN_PRODUCT, bBase + at, n, room);
  if (aType == F32) {
    return room;
  }
  const rounded = room + BLOCK_BYTES;
  narrow(room, rounded, aType, 0, n);
  return widen(rounded, aType, 0, n, room);
}

// ---- b stored [n, k]: each row of b is multiplied with all rows of a ---------------------------

/**
 * The rows of b that are multiplied before their results are stored. All 1,536 rows of k = 576 at
 * once were a sixth slower than 128 at a time, and 64 or 32 were no faster.
 */
const ROWS_OF_B: u32 = 128;

function dotsOfOneRow(i: u32, j0: u32, j1: u32): void {
  const sums = scratchBase + SUMS_OFFSET;
  const row = addressOfB(bRow) - bBase;
  openRows(i, i + 1, 0, depth);
  rowDots = isInBlocks() ? blockDotsOf(bType - BLOCKS_IN_PRODUCT, aType) : rowDotsOf(bType);
  for (let j = j0; j < j1; j += ROWS_OF_B) {
    const nc = <i32>min<u32>(j1 - j, ROWS_OF_B);
    rowDots(rowOfA(i, i, 0), addressOfB(bAt + j * bRow), row, nc, depth, sums);
    storeSums(i, i + 1, j, nc, sums);
  }
}

/** Rows of a lie in f32 and have at most KEPT numbers, which are rounded where a is opened else. */
function roundedDots(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const sums = scratchBase + SUMS_OFFSET;
  const row = scratchBase + OWN_OFFSET;
  rowDots = roundedDotsOf(bType - BLOCKS_IN_ROUNDED_PRODUCT);
  for (let i = i0; i < i1; i++) {
    roundRow(rowOfA(i, i0, 0), depth, row);
    for (let j = j0; j < j1; j += ROWS_OF_B) {
      const nc = <i32>min<u32>(j1 - j, ROWS_OF_B);
      rowDots(row, addressOfB(bAt + j * bRow), bRow, nc, depth, sums);
      storeSums(i, i + 1, j, nc, sums);
    }
  }
}

function dotsOfRows(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const sums = scratchBase + TILE_OFFSET;
  const isKept = depth <= KEPT;
  if (isKept) {
    openRows(i0, i1, 0, depth);
  }
  // Where there are several rows of a, b is widened once for all of them.
  const dtype = i1 - i0 == 1 && !isInBlocks() ? bType : F32;
  rowDots = rowDotsOf(dtype);
  for (let j = j0; j < j1; j++) {
    let k: u32 = 0;
    // The loop runs once even where depth is 0, so that the sums are set to 0.
    do {
      const n = min<u32>(depth - k, BLOCK);
      if (!isKept) {
        openRows(i0, i1, k, n);
      }
      const b = termsOf(j, k, n, dtype);
      for (let i = i0; i < i1; i++) {
        const a = isKept ? rowOfA(i, i0, 0) + ((<usize>k) << 2) : rowOfA(i, i0, k);
        rowDots(a, b, 0, 1, n, sums + 64);
        const to = sums + ((<usize>(i - i0)) << 2);
        store<f32>(to, load<f32>(sums + 64) + (k == 0 ? 0 : load<f32>(to)));
      }
      k += BLOCK;
    } while (k < depth);
    storeDots(i0, i1, j, sums);
  }
}

/** The address of n terms of row j of b from k on, in the dtype, which is its own or f32. */
@inline
function termsOf(j: u32, k: u32, n: u32, dtype: i32): usize {
  if (isInBlocks()) {
    // The numbers before k are whole blocks, so their bytes are the same part of the row's.
    return openBlocks(bAt + j * bRow + <u32>((<u64>k * bRow) / depth), n, scratchBase);
  }
  const at = bAt + j * bRow + k;
  return dtype == bType ? addressOfB(at) : widen(bBase, bType, at, n, scratchBase);
}

function storeDots(i0: u32, i1: u32, j: u32, sums: usize): void {
  for (let i = i0; i < i1; i++) {
    let v = load<f32>(sums + ((<usize>(i - i0)) << 2)) * alpha;
    if (biasBase != 0) {
      v += loadFloat(biasBase, biasType, j);
    }
    const at = outAt + i * outRow + j;
    if (accumulate) {
      v += loadFloat(outBase, outType, at);
    }
    storeFloat(outBase, outType, at, v);
  }
}

// ---- b stored [k, n]: four rows of b at once are scaled by values of a and added to sums -------

/**
 * Returns whether b is widened once for all pairs of rows, which pays for f16, whose conversion is
 * slow.
 */
@inline
function widensBefore(rows: u32): bool {
  return bType == F16 && rows > 2;
}

function sumsOfRows(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const dtype = widensBefore(i1 - i0) ? F32 : bType;
  addToOne = dtype == F32 ? addToOneF32 : dtype == F16 ? addToOneF16 : addToOneBf16;
  addToTwo = dtype == F32 ? addToTwoF32 : dtype == F16 ? addToTwoF16 : addToTwoBf16;
  const sums = scratchBase + SUMS_OFFSET;
  for (let j = j0; j < j1; j += MATMUL_FEW_COLUMNS) {
    const nc = <i32>min<u32>(j1 - j, MATMUL_FEW_COLUMNS);
    memory.fill(sums, 0, <usize>(i1 - i0) * SUMS_LD);
    for (let k: u32 = 0; k < depth; k += KEPT) {
      const n = min<u32>(depth - k, KEPT);
      openRows(i0, i1, k, n);
      blockOfSums(i0, i1, k, n, j, nc, sums);
    }
    storeSums(i0, i1, j, nc, sums);
  }
}

function blockOfSums(i0: u32, i1: u32, k: u32, n: u32, j: u32, nc: i32, sums: usize): void {
  const isWidened = widensBefore(i1 - i0);
  const most = isWidened ? BLOCK : nc;
  let q: u32 = 0;
  for (; q + 4 <= n; q += 4) {
    const o = (<usize>q) << 2;
    for (let first = 0; first < nc; first += most) {
      const part = min(nc - first, most);
      const at = bAt + (k + q) * bRow + j + <u32>first;
      let b = addressOfB(at);
      let row = addressOfB(bRow) - bBase;
      if (isWidened) {
        b = scratchBase;
        row = BLOCK_BYTES;
        for (let r: u32 = 0; r < 4; r++) {
          widen(bBase, bType, at + r * bRow, part, b + <usize>r * row);
        }
      }
      let to = sums + ((<usize>first) << 2);
      let i = i0;
      for (; i + 1 < i1; i += 2) {
        addToTwo(rowOfA(i, i0, k) + o, rowOfA(i + 1, i0, k) + o, b, row, part, to);
        to += SUMS_LD * 2;
      }
      if (i < i1) {
        addToOne(rowOfA(i, i0, k) + o, b, row, part, to);
      }
    }
  }
  for (; q < n; q++) {
    for (let first = 0; first < nc; first += BLOCK) {
      const part = min(nc - first, BLOCK);
      const b = widen(bBase, bType, bAt + (k + q) * bRow + j + <u32>first, part, scratchBase);
      for (let i = i0; i < i1; i++) {
        const s = v128.load_splat<f32>(rowOfA(i, i0, k) + ((<usize>q) << 2));
        addRow(s, b, sums + <usize>(i - i0) * SUMS_LD + ((<usize>first) << 2), part);
      }
    }
  }
}

function addRow(s: v128, b: usize, out: usize, n: i32): void {
  for (let c = 0; c < n; c += 4) {
    const o = (<usize>c) << 2;
    v128.store(out + o, madd(s, v128.load(b + o), v128.load(out + o)));
  }
}

/** Adds four rows of b, `row` bytes apart, times four values of a to the sums. */
type AddToOne = (a: usize, b: usize, row: usize, n: i32, sums: usize) => void;
/** Does the same for two rows of sums, those of a and of a1. */
type AddToTwo = (a: usize, a1: usize, b: usize, row: usize, n: i32, sums: usize) => void;

function addToOneF32(a: usize, b: usize, row: usize, n: i32, sums: usize): void {
  addToOneOf(a, b, F32, row, n, sums);
}
function addToOneF16(a: usize, b: usize, row: usize, n: i32, sums: usize): void {
  addToOneOf(a, b, F16, row, n, sums);
}
function addToOneBf16(a: usize, b: usize, row: usize, n: i32, sums: usize): void {
  addToOneOf(a, b, BF16, row, n, sums);
}
function addToTwoF32(a: usize, a1: usize, b: usize, row: usize, n: i32, sums: usize): void {
  addToTwoOf(a, a1, b, F32, row, n, sums);
}
function addToTwoF16(a: usize, a1: usize, b: usize, row: usize, n: i32, sums: usize): void {
  addToTwoOf(a, a1, b, F16, row, n, sums);
}
function addToTwoBf16(a: usize, a1: usize, b: usize, row: usize, n: i32, sums: usize): void {
  addToTwoOf(a, a1, b, BF16, row, n, sums);
}

@inline
function addToOneOf(a: usize, b: usize, dtype: i32, row: usize, n: i32, sums: usize): void {
  const s0 = v128.load_splat<f32>(a);
  const s1 = v128.load_splat<f32>(a, 4);
  const s2 = v128.load_splat<f32>(a, 8);
  const s3 = v128.load_splat<f32>(a, 12);
  const b1 = b + row;
  const b2 = b1 + row;
  const b3 = b2 + row;
  const shift: usize = dtype == F32 ? 2 : 1;
  for (let c: usize = 0; c < <usize>n; c += 4) {
    const o = c << shift;
    const at = sums + (c << 2);
    let sum = madd(s0, loadFour(b + o, dtype), v128.load(at));
    sum = madd(s1, loadFour(b1 + o, dtype), sum);
    sum = madd(s2, loadFour(b2 + o, dtype), sum);
    v128.store(at, madd(s3, loadFour(b3 + o, dtype), sum));
  }
}

@inline
function addToTwoOf(a: usize, a1: usize, b: usize, dtype: i32, row: usize, n: i32, sums: usize): void {
  const s0 = v128.load_splat<f32>(a);
  const s1 = v128.load_splat<f32>(a, 4);
  const s2 = v128.load_splat<f32>(a, 8);
  const s3 = v128.load_splat<f32>(a, 12);
  const t0 = v128.load_splat<f32>(a1);
  const t1 = v128.load_splat<f32>(a1, 4);
  const t2 = v128.load_splat<f32>(a1, 8);
  const t3 = v128.load_splat<f32>(a1, 12);
  const b1 = b + row;
  const b2 = b1 + row;
  const b3 = b2 + row;
  const shift: usize = dtype == F32 ? 2 : 1;
  for (let c: usize = 0; c < <usize>n; c += 4) {
    const o = c << shift;
    const at = sums + (c << 2);
    const x0 = loadFour(b + o, dtype);
    let s = madd(s0, x0, v128.load(at));
    let t = madd(t0, x0, v128.load(at + SUMS_LD));
    const x1 = loadFour(b1 + o, dtype);
    s = madd(s1, x1, s);
    t = madd(t1, x1, t);
    const x2 = loadFour(b2 + o, dtype);
    s = madd(s2, x2, s);
    t = madd(t2, x2, t);
    const x3 = loadFour(b3 + o, dtype);
    v128.store(at, madd(s3, x3, s));
    v128.store(at + SUMS_LD, madd(t3, x3, t));
  }
}

function storeSums(i0: u32, i1: u32, j: u32, nc: i32, sums: usize): void {
  const factor = f32x4.splat(alpha);
  for (let first = 0; first < nc; first += BIAS_COLUMNS) {
    const part = min(nc - first, BIAS_COLUMNS);
    const bias = loadBias(j + <u32>first, part);
    for (let i = i0; i < i1; i++) {
      const row = sums + <usize>(i - i0) * SUMS_LD + ((<usize>first) << 2);
      for (let c = 0; c < part; c += 4) {
        const o = (<usize>c) << 2;
        const v = f32x4.mul(v128.load(row + o), factor);
        v128.store(row + o, f32x4.add(v, v128.load(bias + o)));
      }
      storeRow(row, outAt + i * outRow + j + <u32>first, part);
    }
  }
}
