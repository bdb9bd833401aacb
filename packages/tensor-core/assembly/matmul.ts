// Matrix products. Operands are packed into panels that stay in the caches (Goto and van de Geijn,
// "Anatomy of high-performance matrix multiplication", 2008); the innermost kernel keeps 6 x 8
// results in registers. Each result is summed over k in the same order, whichever thread makes it.
//
// Note [panels of b]: chunks are handed out rows first, so a thread often takes several with the same
// columns. It packs those columns of b once, for all k where they fit, and keeps the panels until it
// takes a chunk of other columns or of another command.

import { loadFloat, narrow, storeFloat, widen } from './convert';
import { oneDot } from './dots';
import { BLOCK_BYTES } from './elementwise';
import { madd } from './fuse';
import { BLOCK, F32, MATMUL_COLUMNS, MATMUL_DEPTH, MATMUL_NARROW_COLUMNS, MATMUL_PANEL_BYTES, SLOT_SEQ } from './layout';
import { packStraight, packTransposed, panelBytes } from './pack';
import { TILE_COLUMNS, TILE_ROWS, tileOfColumns } from './product-tile';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

const MR: i32 = TILE_ROWS;
const NR: i32 = TILE_COLUMNS;
/** Fewer rows are not worth packing b for. */
const THIN_ROWS: u32 = 6;
/** Columns that few rows are multiplied with at once, and bytes from row to row of their sums. */
const THIN_COLUMNS: u32 = BLOCK;
const THIN_LD: usize = <usize>THIN_COLUMNS * 4 + 64;
/** A block of a, MC x KC, lives in the second cache; a panel of b, KC x NR, in the first. */
const MC: i32 = 132;
const KC: i32 = MATMUL_DEPTH;
/** Columns that are worked on at once, at most. */
const NC: i32 = MATMUL_COLUMNS;

// Behind the four blocks (which packing uses): a tile, the bias and zeros of NC columns.
const TILE_OFFSET: usize = BLOCK_BYTES * 4;
const BIAS_OFFSET: usize = TILE_OFFSET + 256;
const ZERO_OFFSET: usize = BIAS_OFFSET + NC * 4 + 64;
const A_OFFSET: usize = ZERO_OFFSET + NC * 4 + 64;
const SLAB_OFFSET: usize = A_OFFSET + MC * KC * 4 + (MC / MR) * 64;
/** Bytes of a row of the slab: f32 results that wait for their rounding to 16 bits. */
const SLAB_ROW: usize = MATMUL_NARROW_COLUMNS * 4 + 64;
const B_OFFSET: usize = SLAB_OFFSET + <usize>MC * SLAB_ROW;

// What one call works on; a thread runs one command at a time.
let aBase: usize = 0;
let aType: i32 = 0;
let aRow: u32 = 0;
let transposeA: bool = false;
let bBase: usize = 0;
let bType: i32 = 0;
let bRow: u32 = 0;
let transposeB: bool = false;
let outBase: usize = 0;
let outType: i32 = 0;
let outRow: u32 = 0;
let biasBase: usize = 0;
let biasType: i32 = 0;
let depth: u32 = 0;
let alpha: f32 = 1;
let accumulate: bool = false;
/** First element of the current batch in each view. */
let aAt: u32 = 0;
let bAt: u32 = 0;
let outAt: u32 = 0;

// What the panels of b hold: columns from keptColumn on, in a batch of a command.
let hasKept: bool = false;
let keptCommand: u32 = 0;
let keptBatch: u32 = 0;
let keptColumn: u32 = 0;

/**
 * args: a, dtype, b, dtype, out, dtype, bias or 0, dtype, m, n, k, transposeA, transposeB, aRow,
 * bRow, outRow, batches, inner batches, a outer, a inner, b outer, b inner, out outer, out inner
 * (strides), alpha, accumulate, chunks over batches, over columns, over rows, columns at once.
 */
export function matmul(slot: usize, chunk: u32, _chunks: u32): void {
  aBase = <usize>arg(slot, 0);
  aType = argI(slot, 1);
  bBase = <usize>arg(slot, 2);
  bType = argI(slot, 3);
  outBase = <usize>arg(slot, 4);
  outType = argI(slot, 5);
  biasBase = <usize>arg(slot, 6);
  biasType = argI(slot, 7);
  const m = arg(slot, 8);
  const n = arg(slot, 9);
  depth = arg(slot, 10);
  transposeA = argI(slot, 11) != 0;
  transposeB = argI(slot, 12) != 0;
  aRow = arg(slot, 13);
  bRow = arg(slot, 14);
  outRow = arg(slot, 15);
  const batches = arg(slot, 16);
  const inner = arg(slot, 17);
  alpha = argF(slot, 24);
  accumulate = argI(slot, 25) != 0;
  const batchChunks = arg(slot, 26);
  const columnChunks = arg(slot, 27);
  const rowChunks = arg(slot, 28);
  const columns = argI(slot, 29);

  const rowChunk = chunk % rowChunks;
  const rest = chunk / rowChunks;
  const columnChunk = rest % columnChunks;
  const batchChunk = rest / columnChunks;
  const i0 = chunkStart(m, rowChunk, rowChunks, MR);
  const i1 = chunkStart(m, rowChunk + 1, rowChunks, MR);
  const j0 = chunkStart(n, columnChunk, columnChunks, NR);
  const j1 = chunkStart(n, columnChunk + 1, columnChunks, NR);
  const command = load<u32>(slot + (SLOT_SEQ << 2));
  const end = chunkStart(batches, batchChunk + 1, batchChunks, 1);
  for (let s = chunkStart(batches, batchChunk, batchChunks, 1); s < end; s++) {
    const o = s / inner;
    const i = s - o * inner;
    aAt = o * arg(slot, 18) + i * arg(slot, 19);
    bAt = o * arg(slot, 20) + i * arg(slot, 21);
    outAt = o * arg(slot, 22) + i * arg(slot, 23);
    // The choice depends on the shape alone, or results would depend on the split.
    if (m < THIN_ROWS) {
      if (transposeB) {
        thinDots(i0, i1, j0, j1);
      } else {
        thinRows(i0, i1, j0, j1);
      }
      continue;
    }
    for (let j = j0; j < j1; j += columns) {
      const nc = <i32>min<u32>(j1 - j, columns);
      const isPacked = hasKept && keptCommand == command && keptBatch == s && keptColumn == j;
      if (outType == F32) {
        blocksInPlace(i0, i1, j, nc, isPacked);
      } else {
        blocksInSlab(i0, i1, j, nc, isPacked);
      }
      hasKept = keepsAll(nc);
      keptCommand = command;
      keptBatch = s;
      keptColumn = j;
    }
  }
}

/** Whether the panels of nc columns have room for all k: see Note [panels of b]. */
@inline
function keepsAll(nc: i32): bool {
  return columnBlockBytes(nc) * <usize>((depth + KC - 1) / KC) <= <usize>MATMUL_PANEL_BYTES;
}

/** Bytes of the panels of nc columns for one block of k. */
@inline
function columnBlockBytes(nc: i32): usize {
  return <usize>((nc + NR - 1) / NR) * panelBytes(min<i32>(<i32>depth, KC), NR);
}

/** Where the panels of a block of k stand. */
@inline
function panelsOf(k: u32, nc: i32): usize {
  const block = keepsAll(nc) ? <usize>(k / KC) : 0;
  return scratchBase + B_OFFSET + block * columnBlockBytes(nc);
}

/** f32 results: partial sums stand in out itself. */
function blocksInPlace(i0: u32, i1: u32, j: u32, nc: i32, isPacked: bool): void {
  const biasRow = loadBias(j, nc);
  const zeros = zeroRow(nc);
  let k: u32 = 0;
  // Once even where depth is 0: the results are then the bias.
  do {
    const kc = <i32>min<u32>(depth - k, KC);
    const panels = panelsOf(k, nc);
    if (!isPacked) {
      packB(j, nc, k, kc, panels);
    }
    for (let i = i0; i < i1; i += MC) {
      const mc = <i32>min<u32>(i1 - i, MC);
      packA(i, mc, k, kc);
      const at = outAt + i * outRow + j;
      tiles(
        mc,
        nc,
        kc,
        panels,
        outBase + ((<usize>at) << 2),
        (<usize>outRow) << 2,
        k == 0 ? biasRow : zeros,
        k != 0 || accumulate,
      );
    }
    k += KC;
  } while (k < depth);
}

/** 16-bit results: partial sums stand in a slab and are rounded once. */
function blocksInSlab(i0: u32, i1: u32, j0: u32, columns: i32, isPacked: bool): void {
  const slab = scratchBase + SLAB_OFFSET;
  const keeps = keepsAll(columns);
  for (let i = i0; i < i1; i += MC) {
    const mc = <i32>min<u32>(i1 - i, MC);
    let k: u32 = 0;
    do {
      const kc = <i32>min<u32>(depth - k, KC);
      const panels = panelsOf(k, columns);
      if (!isPacked && (!keeps || i == i0)) {
        packB(j0, columns, k, kc, panels);
      }
      packA(i, mc, k, kc);
      const biasRow = k == 0 ? loadBias(j0, columns) : zeroRow(columns);
      // Whole tiles: the slab has room for them.
      const rows = mc + MR - 1;
      tiles(rows - (rows % MR), (columns + NR - 1) & ~(NR - 1), kc, panels, slab, SLAB_ROW, biasRow, k != 0);
      k += KC;
    } while (k < depth);
    for (let r = 0; r < mc; r++) {
      storeRow(slab + <usize>r * SLAB_ROW, outAt + (i + <u32>r) * outRow + j0, columns);
    }
  }
}

/** Stores n finished f32 values as results from element `at`, adding what is there if asked to. */
function storeRow(values: usize, at: u32, n: i32): void {
  if (accumulate) {
    for (let i = 0; i < n; i += BLOCK) {
      const part = min(n - i, BLOCK);
      const old = widen(outBase, outType, at + i, part, scratchBase);
      for (let c = 0; c < part; c += 4) {
        const v = values + ((<usize>(i + c)) << 2);
        v128.store(v, f32x4.add(v128.load(v), v128.load(old + (c << 2))));
      }
    }
  }
  narrow(values, outBase, outType, at, n);
}

/** The bias of nc columns, or zeros, with room for whole vectors. */
function loadBias(j: u32, nc: i32): usize {
  if (biasBase == 0) {
    return zeroRow(nc);
  }
  return widen(biasBase, biasType, j, nc, scratchBase + BIAS_OFFSET);
}

function zeroRow(nc: i32): usize {
  const zeros = scratchBase + ZERO_OFFSET;
  memory.fill(zeros, 0, ((<usize>nc) << 2) + 64);
  return zeros;
}

function packA(i: u32, mc: i32, k: u32, kc: i32): void {
  const panels = scratchBase + A_OFFSET;
  if (transposeA) {
    packStraight(aBase, aType, aAt + k * aRow + i, aRow, kc, mc, MR, panels);
  } else {
    packTransposed(aBase, aType, aAt + i * aRow + k, aRow, kc, mc, MR, panels);
  }
}

function packB(j: u32, nc: i32, k: u32, kc: i32, panels: usize): void {
  if (transposeB) {
    packTransposed(bBase, bType, bAt + j * bRow + k, bRow, kc, nc, NR, panels);
  } else {
    packStraight(bBase, bType, bAt + k * bRow + j, bRow, kc, nc, NR, panels);
  }
}

function tiles(
  mc: i32,
  nc: i32,
  kc: i32,
  b: usize,
  out: usize,
  ld: usize,
  bias: usize,
  add: bool,
): void {
  const aStride = panelBytes(kc, MR);
  const bStride = panelBytes(kc, NR);
  const sums = scratchBase + TILE_OFFSET;
  for (let j = 0; j < nc; j += NR) {
    let a = scratchBase + A_OFFSET;
    for (let i = 0; i < mc; i += MR) {
      const dst = out + <usize>i * ld + ((<usize>j) << 2);
      const rows = min(mc - i, MR);
      // Called in both branches: see Note [tiles].
      if (nc - j >= NR) {
        tile(a, b, kc, sums);
        finish(sums, rows, bias, dst, ld, add);
      } else {
        tile(a, b, kc, sums);
        finishEdge(sums, rows, nc - j, bias, dst, ld, add);
      }
      a += aStride;
    }
    b += bStride;
    bias += NR * 4;
  }
}

/** sums = a x b, 6 x 8 results. */
function tile(a: usize, b: usize, kc: i32, sums: usize): void {
  tileOfColumns(a, MR << 2, b, kc, sums, NR << 2);
}

/** out = alpha * sums + bias (+ out), whole rows of a tile. */
function finish(sums: usize, rows: i32, bias: usize, out: usize, ld: usize, add: bool): void {
  const factor = f32x4.splat(alpha);
  const bias0 = v128.load(bias);
  const bias1 = v128.load(bias, 16);
  for (let r = 0; r < rows; r++) {
    let r0 = f32x4.add(f32x4.mul(v128.load(sums), factor), bias0);
    let r1 = f32x4.add(f32x4.mul(v128.load(sums, 16), factor), bias1);
    if (add) {
      r0 = f32x4.add(r0, v128.load(out));
      r1 = f32x4.add(r1, v128.load(out, 16));
    }
    v128.store(out, r0);
    v128.store(out, r1, 16);
    sums += NR * 4;
    out += ld;
  }
}

/** The same for fewer columns than a tile has. */
function finishEdge(
  sums: usize,
  rows: i32,
  columns: i32,
  bias: usize,
  out: usize,
  ld: usize,
  add: bool,
): void {
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const o = (<usize>c) << 2;
      const v = load<f32>(sums + o) * alpha + load<f32>(bias + o);
      store<f32>(out + o, add ? v + load<f32>(out + o) : v);
    }
    sums += NR * 4;
    out += ld;
  }
}

/** Few rows, b stored [k, n]: four rows of b are read where they lie, for all rows of a. */
function thinRows(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const sums = scratchBase + A_OFFSET;
  for (let j = j0; j < j1; j += THIN_COLUMNS) {
    const nc = <i32>min<u32>(j1 - j, THIN_COLUMNS);
    memory.fill(sums, 0, <usize>(i1 - i0) * THIN_LD);
    for (let k: u32 = 0; k < depth; k += 4) {
      const b0 = thinB(k, j, nc, 0);
      const b1 = thinB(k + 1, j, nc, 1);
      const b2 = thinB(k + 2, j, nc, 2);
      const b3 = thinB(k + 3, j, nc, 3);
      for (let i = i0; i < i1; i++) {
        const s0 = thinA(i, k);
        const row = sums + <usize>(i - i0) * THIN_LD;
        if (k + 4 > depth) {
          addRow(s0, b0, row, nc);
          if (k + 1 < depth) addRow(thinA(i, k + 1), b1, row, nc);
          if (k + 2 < depth) addRow(thinA(i, k + 2), b2, row, nc);
          continue;
        }
        const s1 = thinA(i, k + 1);
        const s2 = thinA(i, k + 2);
        const s3 = thinA(i, k + 3);
        for (let c = 0; c < nc; c += 4) {
          const o = (<usize>c) << 2;
          let sum = madd(s0, v128.load(b0 + o), v128.load(row + o));
          sum = madd(s1, v128.load(b1 + o), sum);
          sum = madd(s2, v128.load(b2 + o), sum);
          v128.store(row + o, madd(s3, v128.load(b3 + o), sum));
        }
      }
    }
    const factor = f32x4.splat(alpha);
    for (let first = 0; first < nc; first += NC) {
      const part = min(nc - first, NC);
      const bias = loadBias(j + <u32>first, part);
      for (let i = i0; i < i1; i++) {
        const row = sums + <usize>(i - i0) * THIN_LD + ((<usize>first) << 2);
        for (let c = 0; c < part; c += 4) {
          const o = (<usize>c) << 2;
          const v = f32x4.mul(v128.load(row + o), factor);
          v128.store(row + o, f32x4.add(v, v128.load(bias + o)));
        }
        storeRow(row, outAt + i * outRow + j + <u32>first, part);
      }
    }
  }
}

/** Row k of b from column j on in f32; past the last one it again. */
@inline
function thinB(k: u32, j: u32, nc: i32, block: usize): usize {
  return widen(bBase, bType, bAt + min<u32>(k, depth - 1) * bRow + j, nc, scratchBase + BLOCK_BYTES * block);
}

@inline
function thinA(i: u32, k: u32): v128 {
  return f32x4.splat(loadFloat(aBase, aType, aAt + (transposeA ? k * aRow + i : i * aRow + k)));
}

function addRow(s: v128, b: usize, out: usize, n: i32): void {
  for (let c = 0; c < n; c += 4) {
    const o = (<usize>c) << 2;
    v128.store(out + o, madd(s, v128.load(b + o), v128.load(out + o)));
  }
}

/** Few rows, b stored [n, k]: one row of b after the other, as memory likes it, times all rows of a. */
function thinDots(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const sums = scratchBase + TILE_OFFSET;
  const isOneBlock = depth <= <u32>BLOCK;
  for (let j = j0; j < j1; j++) {
    for (let k: u32 = 0; k < depth; k += BLOCK) {
      const n = <i32>min<u32>(depth - k, BLOCK);
      const b = widen(bBase, bType, bAt + j * bRow + k, n, scratchBase);
      for (let i = i0; i < i1; i++) {
        const a = thinRowOfA(i, i0, k, n, j == j0 || !isOneBlock);
        const to = sums + ((<usize>(i - i0)) << 2);
        store<f32>(to, oneDot(a, b, n) + (k == 0 ? 0 : load<f32>(to)));
      }
    }
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
}

/** n values of row i of a in f32; where they don't lie so, in a place of their own, filled if `isNew`. */
function thinRowOfA(i: u32, i0: u32, k: u32, n: i32, isNew: bool): usize {
  const own = scratchBase + A_OFFSET + <usize>(i - i0) * BLOCK_BYTES;
  if (!transposeA) {
    return isNew || aType == F32 ? widen(aBase, aType, aAt + i * aRow + k, n, own) : own;
  }
  if (isNew) {
    for (let q = 0; q < n; q++) {
      store<f32>(own + (q << 2), loadFloat(aBase, aType, aAt + (k + <u32>q) * aRow + i));
    }
  }
  return own;
}
