// Matrix products. Operands are packed into panels that stay in the caches (Goto and van de Geijn,
// "Anatomy of high-performance matrix multiplication", 2008); the innermost kernel keeps 4 x 8
// results in registers. Each result is summed over k in the same order, whichever thread makes it.

import { loadFloat, narrow, storeFloat, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { madd } from './fuse';
import { BLOCK, F32 } from './layout';
import { packStraight, packTransposed, panelBytes } from './pack';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';
import { dot } from './softmax';

/** Results in registers. */
const MR: i32 = 4;
const NR: i32 = 8;
/** A block of a, MC x KC, lives in the second cache; a panel of b, KC x NR, in the first. */
const MC: i32 = 128;
const KC: i32 = 256;
const NC: i32 = 512;

// Behind the four blocks (which packing uses): a tile, the bias and zeros of NC columns.
const EDGE_OFFSET: usize = BLOCK_BYTES * 4;
const BIAS_OFFSET: usize = EDGE_OFFSET + 256;
const ZERO_OFFSET: usize = BIAS_OFFSET + NC * 4 + 64;
const A_OFFSET: usize = ZERO_OFFSET + NC * 4 + 64;
const B_OFFSET: usize = A_OFFSET + MC * KC * 4 + (MC / MR) * 64;
const SLAB_OFFSET: usize = B_OFFSET + KC * NC * 4 + (NC / NR) * 64;
/** Bytes of a row of the f32 results that wait for their rounding to 16 bits. */
const SLAB_ROW: usize = NC * 4 + 64;

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

/**
 * args: a, dtype, b, dtype, out, dtype, bias or 0, dtype, m, n, k, transposeA, transposeB, aRow,
 * bRow, outRow, batches, inner batches, a outer, a inner, b outer, b inner, out outer, out inner
 * (strides), alpha, accumulate, chunks over batches, over rows, over columns.
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
  const rowChunks = arg(slot, 27);
  const columnChunks = arg(slot, 28);

  const columnChunk = chunk % columnChunks;
  const rest = chunk / columnChunks;
  const rowChunk = rest % rowChunks;
  const batchChunk = rest / rowChunks;
  const i0 = chunkStart(m, rowChunk, rowChunks, MR);
  const i1 = chunkStart(m, rowChunk + 1, rowChunks, MR);
  const j0 = chunkStart(n, columnChunk, columnChunks, NR);
  const j1 = chunkStart(n, columnChunk + 1, columnChunks, NR);
  const end = chunkStart(batches, batchChunk + 1, batchChunks, 1);
  for (let s = chunkStart(batches, batchChunk, batchChunks, 1); s < end; s++) {
    const o = s / inner;
    const i = s - o * inner;
    aAt = o * arg(slot, 18) + i * arg(slot, 19);
    bAt = o * arg(slot, 20) + i * arg(slot, 21);
    outAt = o * arg(slot, 22) + i * arg(slot, 23);
    // The choice depends on the shape alone, or results would depend on the split.
    if (m < <u32>MR) {
      if (transposeB) {
        thinDots(i0, i1, j0, j1);
      } else {
        thinRows(i0, i1, j0, j1);
      }
    } else if (outType == F32) {
      blocksInPlace(i0, i1, j0, j1);
    } else {
      blocksInSlab(i0, i1, j0, j1);
    }
  }
}

/** f32 results: partial sums stand in out itself. */
function blocksInPlace(i0: u32, i1: u32, j0: u32, j1: u32): void {
  for (let j = j0; j < j1; j += NC) {
    const nc = <i32>min<u32>(j1 - j, NC);
    const biasRow = loadBias(j, nc);
    const zeros = zeroRow();
    let k: u32 = 0;
    // Once even where depth is 0: the results are then the bias.
    do {
      const kc = <i32>min<u32>(depth - k, KC);
      packB(j, nc, k, kc);
      for (let i = i0; i < i1; i += MC) {
        const mc = <i32>min<u32>(i1 - i, MC);
        packA(i, mc, k, kc);
        const at = outAt + i * outRow + j;
        tiles(
          mc,
          nc,
          kc,
          outBase + ((<usize>at) << 2),
          (<usize>outRow) << 2,
          k == 0 ? biasRow : zeros,
          k != 0 || accumulate,
        );
      }
      k += KC;
    } while (k < depth);
  }
}

/** 16-bit results: partial sums stand in a slab and are rounded once. */
function blocksInSlab(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const slab = scratchBase + SLAB_OFFSET;
  for (let j = j0; j < j1; j += NC) {
    const nc = <i32>min<u32>(j1 - j, NC);
    let packed = -1;
    for (let i = i0; i < i1; i += MC) {
      const mc = <i32>min<u32>(i1 - i, MC);
      let k: u32 = 0;
      do {
        const kc = <i32>min<u32>(depth - k, KC);
        if (packed != <i32>k) {
          packB(j, nc, k, kc);
          packed = <i32>k;
        }
        packA(i, mc, k, kc);
        const biasRow = k == 0 ? loadBias(j, nc) : zeroRow();
        // Whole tiles: the slab has room for them.
        const rows = (mc + MR - 1) & ~(MR - 1);
        const columns = (nc + NR - 1) & ~(NR - 1);
        tiles(rows, columns, kc, slab, SLAB_ROW, biasRow, k != 0);
        k += KC;
      } while (k < depth);
      for (let r = 0; r < mc; r++) {
        storeRow(slab + <usize>r * SLAB_ROW, outAt + (i + <u32>r) * outRow + j, nc);
      }
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
    return zeroRow();
  }
  return widen(biasBase, biasType, j, nc, scratchBase + BIAS_OFFSET);
}

function zeroRow(): usize {
  const zeros = scratchBase + ZERO_OFFSET;
  memory.fill(zeros, 0, NC * 4 + 64);
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

function packB(j: u32, nc: i32, k: u32, kc: i32): void {
  const panels = scratchBase + B_OFFSET;
  if (transposeB) {
    packTransposed(bBase, bType, bAt + j * bRow + k, bRow, kc, nc, NR, panels);
  } else {
    packStraight(bBase, bType, bAt + k * bRow + j, bRow, kc, nc, NR, panels);
  }
}

function tiles(mc: i32, nc: i32, kc: i32, out: usize, ld: usize, bias: usize, add: bool): void {
  const aStride = panelBytes(kc, MR);
  const bStride = panelBytes(kc, NR);
  const edge = scratchBase + EDGE_OFFSET;
  let b = scratchBase + B_OFFSET;
  for (let j = 0; j < nc; j += NR) {
    let a = scratchBase + A_OFFSET;
    const columns = nc - j;
    for (let i = 0; i < mc; i += MR) {
      const dst = out + <usize>i * ld + ((<usize>j) << 2);
      if (columns >= NR && mc - i >= MR) {
        tile(a, b, kc, dst, ld, bias, add);
      } else {
        tile(a, b, kc, edge, NR * 4, bias, false);
        copyEdge(edge, dst, ld, min(mc - i, MR), min(columns, NR), add);
      }
      a += aStride;
    }
    b += bStride;
    bias += NR * 4;
  }
}

function copyEdge(edge: usize, dst: usize, ld: usize, rows: i32, columns: i32, add: bool): void {
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const o = (<usize>c) << 2;
      const v = load<f32>(edge + o);
      store<f32>(dst + o, add ? v + load<f32>(dst + o) : v);
    }
    edge += NR * 4;
    dst += ld;
  }
}

/** out = alpha * a x b + bias (+ out): 4 x 8 results. */
function tile(a: usize, b: usize, kc: i32, out: usize, ld: usize, bias: usize, add: bool): void {
  let c00 = f32x4.splat(0);
  let c01 = f32x4.splat(0);
  let c10 = f32x4.splat(0);
  let c11 = f32x4.splat(0);
  let c20 = f32x4.splat(0);
  let c21 = f32x4.splat(0);
  let c30 = f32x4.splat(0);
  let c31 = f32x4.splat(0);
  const end = a + ((<usize>kc) << 4);
  // Not unrolled: V8 then keeps everything in registers, and unrolled it does not (a third slower).
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
    a += 16;
    b += 32;
  }
  const factor = f32x4.splat(alpha);
  const bias0 = v128.load(bias);
  const bias1 = v128.load(bias, 16);
  finish(c00, c01, factor, bias0, bias1, out, add);
  out += ld;
  finish(c10, c11, factor, bias0, bias1, out, add);
  out += ld;
  finish(c20, c21, factor, bias0, bias1, out, add);
  out += ld;
  finish(c30, c31, factor, bias0, bias1, out, add);
}

@inline
function finish(
  c0: v128,
  c1: v128,
  factor: v128,
  bias0: v128,
  bias1: v128,
  out: usize,
  add: bool,
): void {
  let r0 = f32x4.add(f32x4.mul(c0, factor), bias0);
  let r1 = f32x4.add(f32x4.mul(c1, factor), bias1);
  if (add) {
    r0 = f32x4.add(r0, v128.load(out));
    r1 = f32x4.add(r1, v128.load(out, 16));
  }
  v128.store(out, r0);
  v128.store(out, r1, 16);
}

/** Few rows, b stored [k, n]: packing b would cost more than the product. */
function thinRows(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const sums = scratchBase + BLOCK_BYTES;
  for (let i = i0; i < i1; i++) {
    for (let j = j0; j < j1; j += NC) {
      const nc = <i32>min<u32>(j1 - j, NC);
      memory.fill(sums, 0, <usize>(nc + 8) << 2);
      for (let k: u32 = 0; k < depth; k++) {
        const s = f32x4.splat(loadFloat(aBase, aType, aAt + (transposeA ? k * aRow + i : i * aRow + k)));
        const b = widen(bBase, bType, bAt + k * bRow + j, nc, scratchBase);
        for (let c = 0; c < nc; c += 4) {
          const o = (<usize>c) << 2;
          v128.store(sums + o, madd(s, v128.load(b + o), v128.load(sums + o)));
        }
      }
      const bias = loadBias(j, nc);
      const factor = f32x4.splat(alpha);
      for (let c = 0; c < nc; c += 4) {
        const o = (<usize>c) << 2;
        const v = f32x4.mul(v128.load(sums + o), factor);
        v128.store(sums + o, f32x4.add(v, v128.load(bias + o)));
      }
      storeRow(sums, outAt + i * outRow + j, nc);
    }
  }
}

/** Few rows, b stored [n, k]: one scalar product a result. */
function thinDots(i0: u32, i1: u32, j0: u32, j1: u32): void {
  const aRowBlock = scratchBase;
  const bRowBlock = scratchBase + BLOCK_BYTES;
  for (let i = i0; i < i1; i++) {
    for (let j = j0; j < j1; j++) {
      let sum: f64 = 0;
      for (let k: u32 = 0; k < depth; k += BLOCK) {
        const n = <i32>min<u32>(depth - k, BLOCK);
        let a: usize;
        if (transposeA) {
          a = aRowBlock;
          for (let q = 0; q < n; q++) {
            const at = aAt + (k + <u32>q) * aRow + i;
            store<f32>(a + (q << 2), loadFloat(aBase, aType, at));
          }
        } else {
          a = widen(aBase, aType, aAt + i * aRow + k, n, aRowBlock);
        }
        sum += <f64>dot(a, widen(bBase, bType, bAt + j * bRow + k, n, bRowBlock), n);
      }
      let v = <f32>sum * alpha;
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
