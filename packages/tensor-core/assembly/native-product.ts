// Products by a library of the host, such as OpenBLAS, which reads operands and writes results in
// this memory. It takes f32 alone, so 16-bit operands are widened a block at a time and sums stay
// f32 until they are rounded once. Another takes bf16 as it is, where a processor multiplies that
// several times as fast.
//
// Note [cut by shape]: a library sums small products in another order than large ones, so that a
// part of a product need not have the bits of the whole. The host therefore chooses columns, parts
// of k and the most parts of rows by the shape alone (encode-matmul.ts), and each part is one call
// here, or one for each block.
//
// Note [rows on their own]: whole tiles of rows have the same bits beside others or alone, with
// OpenBLAS on x64. Where its trial shows it, rows are cut for the threads there are: each part
// packs all of b, which makes eight parts a sixth slower than one.

import { widen } from './convert';
import { gemm, gemmBf16 } from './gemm';
import { F32, LIBRARY_BLOCK, LIBRARY_ROWS } from './layout';
import {
  aAt,
  aBase,
  accumulate,
  alpha,
  aRow,
  aType,
  bAt,
  bBase,
  BIAS_COLUMNS,
  biasBase,
  bRow,
  bType,
  depth,
  loadBias,
  outAt,
  outBase,
  outRow,
  outType,
  OWN_OFFSET,
  storeRow,
  transposeA,
  transposeB,
} from './matmul-call';
import { scratchBase } from './slot';

const BLOCK_SIZE: u32 = LIBRARY_BLOCK;
/** The elements from one row of a block to the next. A row is widened by whole vectors. */
const BLOCK_ROW: u32 = BLOCK_SIZE + 16;
const BLOCK_AREA: usize = <usize>(BLOCK_SIZE * BLOCK_ROW * 4 + 64);
const A_OFFSET: usize = OWN_OFFSET;
const B_OFFSET: usize = A_OFFSET + BLOCK_AREA;
const SUMS_OFFSET: usize = B_OFFSET + BLOCK_AREA;

/** The rows of which a part has a multiple, unless it has the last ones. */
export function nativeRows(): u32 {
  return isInBlocks() ? LIBRARY_BLOCK : LIBRARY_ROWS;
}

/**
 * Whether products are made in blocks of LIBRARY_BLOCK, which begin at the same rows however rows
 * are cut.
 */
function isInBlocks(): bool {
  return aType != F32 || bType != F32 || outType != F32;
}

/** Computes rows i0 to i1 and columns j0 to j1 of the current batch. */
export function nativeProduct(i0: u32, i1: u32, j0: u32, j1: u32, isBf16: bool): void {
  const isWhole = aType == F32 && bType == F32;
  const isInPlace = outType == F32;
  const most = isInBlocks() ? BLOCK_SIZE : u32.MAX_VALUE;
  for (let j = j0; j < j1; j += min(j1 - j, most)) {
    const columns = min(j1 - j, most);
    for (let i = i0; i < i1; i += min(i1 - i, most)) {
      const rows = min(i1 - i, most);
      const out = isInPlace ? placeOf(i, j) : scratchBase + SUMS_OFFSET;
      const row = isInPlace ? outRow : BLOCK_ROW;
      if (isBf16) {
        multiplyBf16(i, rows, j, columns, out, row);
      } else {
        addTerms(i, rows, j, columns, isWhole ? depth : BLOCK_SIZE, out, row);
      }
      if (biasBase != 0) {
        addBias(rows, j, columns, out, row);
      }
      if (!isInPlace) {
        storeSums(i, rows, j, columns);
      }
    }
  }
}

/** Makes a block of results from bf16, or adds to it. */
function multiplyBf16(i: u32, rows: u32, j: u32, columns: u32, out: usize, row: u32): void {
  gemmBf16(
    <i32>transposeA,
    <i32>transposeB,
    rows,
    columns,
    depth,
    alpha,
    aBase + ((<usize>(aAt + (transposeA ? i : i * aRow))) << 1),
    aRow,
    bBase + ((<usize>(bAt + (transposeB ? j * bRow : j))) << 1),
    bRow,
    accumulate && outType == F32 ? 1 : 0,
    out,
    row,
  );
}

@inline
function placeOf(i: u32, j: u32): usize {
  return outBase + ((<usize>(outAt + i * outRow + j)) << 2);
}

/** Makes a block of results, or adds to it, from all of k, at most `most` terms in a call. */
function addTerms(
  i: u32,
  rows: u32,
  j: u32,
  columns: u32,
  most: u32,
  out: usize,
  row: u32,
): void {
  for (let k: u32 = 0; k < depth; k += most) {
    const terms = min(depth - k, most);
    const addsUp = k != 0 || (accumulate && outType == F32);
    // An operand of f32 is read where it is.
    const a = transposeA
      ? widenBlock(aBase, aType, aAt + k * aRow + i, aRow, terms, rows, A_OFFSET)
      : widenBlock(aBase, aType, aAt + i * aRow + k, aRow, rows, terms, A_OFFSET);
    const b = transposeB
      ? widenBlock(bBase, bType, bAt + j * bRow + k, bRow, columns, terms, B_OFFSET)
      : widenBlock(bBase, bType, bAt + k * bRow + j, bRow, terms, columns, B_OFFSET);
    gemm(
      <i32>transposeA,
      <i32>transposeB,
      rows,
      columns,
      terms,
      alpha,
      a,
      aType == F32 ? aRow : BLOCK_ROW,
      b,
      bType == F32 ? bRow : BLOCK_ROW,
      addsUp ? 1 : 0,
      out,
      row,
    );
  }
}

/** Returns the address of a block in f32: its own, or in scratch where its rows are widened. */
function widenBlock(
  base: usize,
  dtype: i32,
  at: u32,
  ld: u32,
  rows: u32,
  columns: u32,
  offset: usize,
): usize {
  if (dtype == F32) {
    return base + ((<usize>at) << 2);
  }
  const block = scratchBase + offset;
  for (let r: u32 = 0; r < rows; r++) {
    const row = block + ((<usize>(r * BLOCK_ROW)) << 2);
    widen(base, dtype, at + r * ld, <i32>columns, row);
  }
  return block;
}

function addBias(rows: u32, j: u32, columns: u32, out: usize, row: u32): void {
  for (let c: u32 = 0; c < columns; c += BIAS_COLUMNS) {
    const nc = min<u32>(columns - c, BIAS_COLUMNS);
    const bias = loadBias(j + c, <i32>nc);
    for (let r: u32 = 0; r < rows; r++) {
      addRow(out + ((<usize>(r * row + c)) << 2), bias, nc);
    }
  }
}

function addRow(out: usize, bias: usize, n: u32): void {
  const whole = n & ~3;
  let at: usize = 0;
  for (const end = (<usize>whole) << 2; at < end; at += 16) {
    v128.store(out + at, f32x4.add(v128.load(out + at), v128.load(bias + at)));
  }
  for (const end = (<usize>n) << 2; at < end; at += 4) {
    store<f32>(out + at, load<f32>(out + at) + load<f32>(bias + at));
  }
}

/** Rounds a block of sums to the dtype of out, onto what is there where that is asked for. */
function storeSums(i: u32, rows: u32, j: u32, columns: u32): void {
  for (let r: u32 = 0; r < rows; r++) {
    const sums = scratchBase + SUMS_OFFSET + ((<usize>(r * BLOCK_ROW)) << 2);
    storeRow(sums, outAt + (i + r) * outRow + j, <i32>columns);
  }
}
