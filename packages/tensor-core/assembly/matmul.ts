// These are matrix products. Operands are packed into panels that stay in the caches (Goto and van
// de Geijn, "Anatomy of high-performance matrix multiplication", 2008), and the innermost kernel
// keeps 6 x 8 results in registers. Each result is summed over k in the same order, whichever
// thread makes it.
//
// Note [panels of b]: chunks are numbered along rows first, so a thread often gets several with the
// same columns. It packs those columns of b once, for all k where they fit, and keeps the panels
// until it gets a chunk of other columns or of another command.

import { fewRows } from './few-rows';
import {
  BY_BF16_LIBRARY,
  BY_LIBRARY,
  F32,
  MATMUL_DEPTH,
  MATMUL_FEW_ROWS,
  MATMUL_NARROW_COLUMNS,
  MATMUL_PANEL_BYTES,
  SLOT_SEQ,
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
  bType,
  depth,
  loadBias,
  openBatch,
  openCall,
  outAt,
  outBase,
  outRow,
  outType,
  OWN_OFFSET,
  storeRow,
  TILE_OFFSET,
  transposeA,
  transposeB,
  zeroRow,
} from './matmul-call';
import { nativeProduct, nativeRows } from './native-product';
import { packStraight, packTransposed, panelBytes } from './pack';
import { TILE_COLUMNS, TILE_ROWS, Tile, tileOfColumns } from './product-tile';
import { arg, argI, chunkStart, scratchBase } from './slot';

const MR: i32 = TILE_ROWS;
const NR: i32 = TILE_COLUMNS;
/**
 * A block of a, MC x KC, stays in the second-level cache, and a panel of b, KC x NR, in the first.
 */
const MC: i32 = 132;
const KC: i32 = MATMUL_DEPTH;

const A_OFFSET: usize = OWN_OFFSET;
const SLAB_OFFSET: usize = A_OFFSET + MC * KC * 4 + (MC / MR) * 64;
/** The bytes of a row of the slab, which holds f32 results until they are rounded to 16 bits. */
const SLAB_ROW: usize = MATMUL_NARROW_COLUMNS * 4 + 64;
const B_OFFSET: usize = SLAB_OFFSET + <usize>MC * SLAB_ROW;

// What the panels of b hold: the columns from keptColumn on, of one batch of one command.
let hasKept: bool = false;
let keptCommand: u32 = 0;
let keptBatch: u32 = 0;
let keptColumn: u32 = 0;

/**
 * The arguments are a, dtype, b, dtype, out, dtype, bias or 0, dtype, m, n, k, transposeA,
 * transposeB, aRow, bRow, outRow, batches, inner batches, the strides (a outer, a inner, b outer, b
 * inner, out outer, out inner), alpha, accumulate, the chunks over batches, over columns and over
 * rows, and the columns at once, or which library of the host computes them.
 */
export function matmul(slot: usize, chunk: u32, _chunks: u32): void {
  openCall(slot);
  const m = arg(slot, 8);
  const n = arg(slot, 9);
  const batches = arg(slot, 16);
  const inner = arg(slot, 17);
  const batchChunks = arg(slot, 26);
  const columnChunks = arg(slot, 27);
  const rowChunks = arg(slot, 28);
  const columns = argI(slot, 29);

  const rowChunk = chunk % rowChunks;
  const rest = chunk / rowChunks;
  const columnChunk = rest % columnChunks;
  const batchChunk = rest / columnChunks;
  const isBf16 = columns == BY_BF16_LIBRARY;
  const isNative = columns == BY_LIBRARY || isBf16;
  const grain = isNative ? nativeRows() : MR;
  const i0 = chunkStart(m, rowChunk, rowChunks, grain);
  const i1 = chunkStart(m, rowChunk + 1, rowChunks, grain);
  const j0 = chunkStart(n, columnChunk, columnChunks, NR);
  const j1 = chunkStart(n, columnChunk + 1, columnChunks, NR);
  const command = load<u32>(slot + (SLOT_SEQ << 2));
  const end = chunkStart(batches, batchChunk + 1, batchChunks, 1);
  for (let s = chunkStart(batches, batchChunk, batchChunks, 1); s < end; s++) {
    openBatch(slot, s, inner);
    // The choice depends on the shape alone, since otherwise results would depend on the split.
    if (m <= <u32>MATMUL_FEW_ROWS) {
      fewRows(i0, i1, j0, j1);
      continue;
    }
    if (isNative) {
      nativeProduct(i0, i1, j0, j1, isBf16);
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

/** Returns whether the panels of nc columns fit for all k: see Note [panels of b]. */
@inline
function keepsAll(nc: i32): bool {
  return columnBlockBytes(nc) * <usize>((depth + KC - 1) / KC) <= <usize>MATMUL_PANEL_BYTES;
}

/** Returns the bytes of the panels of nc columns for one block of k. */
@inline
function columnBlockBytes(nc: i32): usize {
  return <usize>((nc + NR - 1) / NR) * panelBytes(min<i32>(<i32>depth, KC), NR);
}

/** Returns the address of the panels for the block of k that starts at k. */
@inline
function panelsOf(k: u32, nc: i32): usize {
  const block = keepsAll(nc) ? <usize>(k / KC) : 0;
  return scratchBase + B_OFFSET + block * columnBlockBytes(nc);
}

/** For f32 results the partial sums stand in out itself. */
function blocksInPlace(i0: u32, i1: u32, j: u32, nc: i32, isPacked: bool): void {
  const biasRow = loadBias(j, nc);
  const zeros = zeroRow(nc);
  let k: u32 = 0;
  // The loop runs once even where depth is 0: the results are then the bias.
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

/** For 16-bit results the partial sums stand in a slab and are rounded once. */
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
      // The slab has room for whole tiles.
      const rows = mc + MR - 1;
      tiles(rows - (rows % MR), (columns + NR - 1) & ~(NR - 1), kc, panels, slab, SLAB_ROW, biasRow, k != 0);
      k += KC;
    } while (k < depth);
    for (let r = 0; r < mc; r++) {
      storeRow(slab + <usize>r * SLAB_ROW, outAt + (i + <u32>r) * outRow + j0, columns);
    }
  }
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
      tile(a, b, kc, sums);
      if (nc - j >= NR) {
        finish(sums, rows, bias, dst, ld, add);
      } else {
        finishEdge(sums, rows, nc - j, bias, dst, ld, add);
      }
      a += aStride;
    }
    b += bStride;
    bias += NR * 4;
  }
}

/** Computes 6 x 8 results, sums = a x b. */
let tile: Tile = (a: usize, b: usize, k: i32, sums: usize): void =>
  tileOfColumns(a, MR << 2, b, k, sums, NR << 2, false);

/** Stores alpha * sums + bias (+ out) for whole rows of a tile. */
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

/** Does the same where fewer columns are left than a tile has. */
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
