// These kernels normalize rows: layer norm, which centers them and divides by their standard
// deviation, and RMS norm, which divides by their root mean square. Both gradients of an RMS norm
// are computed in one pass. A unit of it is a block of rows, for which it writes dx and the block's
// part of dWeight. Another command then adds up the parts in order. The gradients of a layer norm's
// parameters are a pass of their own over columns, as two sums beside dx would take longer.
//
// `isCentered` is a constant of each caller, so that the tests of it are compiled away.

import { laneMask, narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK, NORM_PART_ROWS } from './layout';
import { sumBlock, sumLanes } from './reduce';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

/** The number of columns in a unit of the parameters' gradient: one cache line of f32. */
const PARAM_COLUMNS: u32 = 16;
/** The number of rows that are added in f32 before their sum is added to the total. */
const ROW_RUN: u32 = 64;

@inline
function block(i: usize): usize {
  return scratchBase + BLOCK_BYTES * i;
}

/**
 * The arguments are x, dtype, residual or 0, dtype, weight or 0, dtype, bias or 0, dtype, sum or 0,
 * dtype, out, dtype, mean or 0, rstd, rows, cols, eps and the offset of the weight. Rows are
 * centered if their means are stored. With a residual, x + residual is stored in sum and
 * normalized.
 */
export function rowNorm(slot: usize, chunk: u32, chunks: u32): void {
  if (arg(slot, 12) != 0) {
    normalizeRows(slot, chunk, chunks, true);
  } else {
    normalizeRows(slot, chunk, chunks, false);
  }
}

@inline
function normalizeRows(slot: usize, chunk: u32, chunks: u32, isCentered: bool): void {
  const residual = <usize>arg(slot, 2);
  const x = <usize>(residual != 0 ? arg(slot, 8) : arg(slot, 0));
  const xType = residual != 0 ? argI(slot, 9) : argI(slot, 1);
  const weight = <usize>arg(slot, 4);
  const bias = <usize>arg(slot, 6);
  const out = <usize>arg(slot, 10);
  const outType = argI(slot, 11);
  const means = <usize>arg(slot, 12);
  const rstds = <usize>arg(slot, 13);
  const rows = arg(slot, 14);
  const cols = arg(slot, 15);
  const eps = <f64>argF(slot, 16);
  const offset = f32x4.splat(argF(slot, 17));
  const one = f32x4.splat(1);
  const zero = f32x4.splat(0);
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    const at = r * cols;
    if (residual != 0) {
      addRow(<usize>arg(slot, 0), argI(slot, 1), residual, argI(slot, 3), x, xType, at, cols);
    }
    let mean: f32 = 0;
    if (isCentered) {
      let sum: f64 = 0;
      for (let i: u32 = 0; i < cols; i += BLOCK) {
        const n = <i32>min<u32>(cols - i, BLOCK);
        sum += <f64>sumBlock(widen(x, xType, at + i, n, block(0)), n);
      }
      mean = <f32>(sum / <f64>cols);
      store<f32>(means + ((<usize>r) << 2), mean);
    }
    let squares: f64 = 0;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      squares += <f64>deviations(widen(x, xType, at + i, n, block(0)), n, mean);
    }
    const rstd = <f32>(1 / sqrt<f64>(squares / <f64>cols + eps));
    store<f32>(rstds + ((<usize>r) << 2), rstd);
    const m = f32x4.splat(mean);
    const s = f32x4.splat(rstd);
    const results = block(3);
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      const xv = widen(x, xType, at + i, n, block(0));
      const wv = weight != 0 ? widen(weight, argI(slot, 5), i, n, block(1)) : 0;
      const bv = isCentered && bias != 0 ? widen(bias, argI(slot, 7), i, n, block(2)) : 0;
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        const hat = normalized(v128.load(xv + o), m, s, isCentered);
        const w = wv != 0 ? scale(v128.load(wv + o), offset, isCentered) : one;
        const scaled = f32x4.mul(hat, w);
        if (isCentered) {
          v128.store(results + o, f32x4.add(scaled, bv != 0 ? v128.load(bv + o) : zero));
        } else {
          v128.store(results + o, scaled);
        }
      }
      narrow(results, out, outType, at + i, n);
    }
  }
}

/** Writes a row of x + residual into `sum`, rounded to its dtype. */
function addRow(
  x: usize,
  xType: i32,
  residual: usize,
  residualType: i32,
  sum: usize,
  sumType: i32,
  at: u32,
  cols: u32,
): void {
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const xv = widen(x, xType, at + i, n, block(0));
    const rv = widen(residual, residualType, at + i, n, block(1));
    const results = block(2);
    for (let j = 0; j < n; j += 4) {
      const o = j << 2;
      v128.store(results + o, f32x4.add(v128.load(xv + o), v128.load(rv + o)));
    }
    narrow(results, sum, sumType, at + i, n);
  }
}

/** Returns the sum of (x - mean)^2 of n values. */
function deviations(x: usize, n: i32, mean: f32): f32 {
  const m = f32x4.splat(mean);
  let s = f32x4.splat(0);
  let i = 0;
  for (; i + 4 <= n; i += 4) {
    const d = f32x4.sub(v128.load(x + (i << 2)), m);
    s = f32x4.add(s, f32x4.mul(d, d));
  }
  if (i < n) {
    const d = v128.and(f32x4.sub(v128.load(x + (i << 2)), m), laneMask(n - i));
    s = f32x4.add(s, f32x4.mul(d, d));
  }
  return sumLanes(s);
}

/** Returns xhat: x, less the mean of its row if rows are centered, times rstd. */
@inline
function normalized(x: v128, mean: v128, rstd: v128, isCentered: bool): v128 {
  return f32x4.mul(isCentered ? f32x4.sub(x, mean) : x, rstd);
}

/** Returns what xhat is multiplied by. The weight of a layer norm has no offset. */
@inline
function scale(weight: v128, offset: v128, isCentered: bool): v128 {
  return isCentered ? weight : f32x4.add(weight, offset);
}

/**
 * The arguments are x, dtype, weight or 0, dtype, mean or 0, rstd, dy, dtype, dSum or 0, dtype, dx
 * or 0, dtype, parts of dWeight or 0, rows, cols and the offset of the weight. Rows are centered if
 * their means are given, and have no parts then. The parts are f32 [ceil(rows / NORM_PART_ROWS),
 * cols].
 */
export function rowNormBackward(slot: usize, chunk: u32, chunks: u32): void {
  const means = <usize>arg(slot, 4);
  const rstds = <usize>arg(slot, 5);
  const parts = <usize>arg(slot, 12);
  const rows = arg(slot, 13);
  const cols = arg(slot, 14);
  const grain = parts != 0 ? NORM_PART_ROWS : 1;
  const end = chunkStart(rows, chunk + 1, chunks, grain);
  for (let r = chunkStart(rows, chunk, chunks, grain); r < end; r++) {
    const rstd = load<f32>(rstds + ((<usize>r) << 2));
    if (means != 0) {
      inputGradient(slot, r, cols, load<f32>(means + ((<usize>r) << 2)), rstd, true);
    } else if (arg(slot, 10) != 0) {
      inputGradient(slot, r, cols, 0, rstd, false);
    }
    if (parts != 0) {
      const part = parts + ((<usize>(r / NORM_PART_ROWS * cols)) << 2);
      if (r % NORM_PART_ROWS == 0) {
        memory.fill(part, 0, (<usize>cols) << 2);
      }
      addWeightGradient(slot, r, cols, rstd, part);
    }
  }
}

/**
 * Computes dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dSum, with g = dy * (weight +
 * offset). Only centered rows have the term mean(g).
 */
@inline
function inputGradient(
  slot: usize,
  r: u32,
  cols: u32,
  mean: f32,
  rstd: f32,
  isCentered: bool,
): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const weight = <usize>arg(slot, 2);
  const dy = <usize>arg(slot, 6);
  const dyType = argI(slot, 7);
  const dSum = <usize>arg(slot, 8);
  const dx = <usize>arg(slot, 10);
  const dxType = argI(slot, 11);
  const offset = f32x4.splat(argF(slot, 15));
  const one = f32x4.splat(1);
  const m = f32x4.splat(mean);
  const s = f32x4.splat(rstd);
  const at = r * cols;
  let sumG: f64 = 0;
  let sumGX: f64 = 0;
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const xv = widen(x, xType, at + i, n, block(0));
    const wv = weight != 0 ? widen(weight, argI(slot, 3), i, n, block(1)) : 0;
    const dv = widen(dy, dyType, at + i, n, block(2));
    let g0 = f32x4.splat(0);
    let gx0 = f32x4.splat(0);
    for (let j = 0; j < n; j += 4) {
      const o = j << 2;
      const hat = normalized(v128.load(xv + o), m, s, isCentered);
      const w = wv != 0 ? scale(v128.load(wv + o), offset, isCentered) : one;
      let g = f32x4.mul(v128.load(dv + o), w);
      let gx = f32x4.mul(g, hat);
      if (j + 4 > n) {
        g = v128.and(g, laneMask(n - j));
        gx = v128.and(gx, laneMask(n - j));
      }
      if (isCentered) {
        g0 = f32x4.add(g0, g);
      }
      gx0 = f32x4.add(gx0, gx);
    }
    sumG += <f64>sumLanes(g0);
    sumGX += <f64>sumLanes(gx0);
  }
  const meanG = f32x4.splat(<f32>(sumG / <f64>cols));
  const meanGX = f32x4.splat(<f32>(sumGX / <f64>cols));
  const results = block(2);
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const xv = widen(x, xType, at + i, n, block(0));
    const wv = weight != 0 ? widen(weight, argI(slot, 3), i, n, block(1)) : 0;
    const dv = widen(dy, dyType, at + i, n, block(2));
    const sv = dSum != 0 ? widen(dSum, argI(slot, 9), at + i, n, block(3)) : 0;
    for (let j = 0; j < n; j += 4) {
      const o = j << 2;
      const hat = normalized(v128.load(xv + o), m, s, isCentered);
      const w = wv != 0 ? scale(v128.load(wv + o), offset, isCentered) : one;
      const g = f32x4.mul(v128.load(dv + o), w);
      const rest = f32x4.sub(isCentered ? f32x4.sub(g, meanG) : g, f32x4.mul(hat, meanGX));
      const own = f32x4.mul(s, rest);
      v128.store(results + o, sv != 0 ? f32x4.add(own, v128.load(sv + o)) : own);
    }
    narrow(results, dx, dxType, at + i, n);
  }
}

/** Adds dy * xhat of a row that is not centered to a part of dWeight. */
function addWeightGradient(slot: usize, r: u32, cols: u32, rstd: f32, part: usize): void {
  const s = f32x4.splat(rstd);
  const at = r * cols;
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const xv = widen(<usize>arg(slot, 0), argI(slot, 1), at + i, n, block(0));
    const dv = widen(<usize>arg(slot, 6), argI(slot, 7), at + i, n, block(1));
    const sums = part + ((<usize>i) << 2);
    let j = 0;
    for (; j + 4 <= n; j += 4) {
      const o = j << 2;
      const hat = f32x4.mul(v128.load(xv + o), s);
      const product = f32x4.mul(v128.load(dv + o), hat);
      v128.store(sums + o, f32x4.add(v128.load(sums + o), product));
    }
    for (; j < n; j++) {
      const o = j << 2;
      store<f32>(sums + o, load<f32>(sums + o) + load<f32>(dv + o) * (load<f32>(xv + o) * rstd));
    }
  }
}

/**
 * Computes the gradients of a layer norm's parameters. The arguments are x, dtype, mean, rstd, dy,
 * dtype, dWeight or 0, dtype, dBias or 0, dtype, rows and cols. A unit of work is PARAM_COLUMNS
 * columns over all rows.
 */
export function rowNormParamGrad(slot: usize, chunk: u32, chunks: u32): void {
  const dWeight = <usize>arg(slot, 6);
  const dBias = <usize>arg(slot, 8);
  const rows = arg(slot, 10);
  const cols = arg(slot, 11);
  const start = chunkStart(cols, chunk, chunks, PARAM_COLUMNS);
  const end = chunkStart(cols, chunk + 1, chunks, PARAM_COLUMNS);
  for (let c = start; c < end; c += BLOCK / 2) {
    const n = <i32>min<u32>(end - c, BLOCK / 2);
    paramColumns(slot, c, n, rows, cols);
    if (dWeight != 0) {
      narrow(block(2), dWeight, argI(slot, 7), c, n);
    }
    if (dBias != 0) {
      narrow(block(3), dBias, argI(slot, 9), c, n);
    }
  }
}

/**
 * Sums n columns over all rows: dy * xhat in block 2, dy in block 3. The second half of each block
 * holds the sums of the current ROW_RUN rows.
 */
function paramColumns(slot: usize, c: u32, n: i32, rows: u32, cols: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const means = <usize>arg(slot, 2);
  const rstds = <usize>arg(slot, 3);
  const dy = <usize>arg(slot, 4);
  const dyType = argI(slot, 5);
  const half = BLOCK_BYTES >> 1;
  const w = block(2);
  const wRun = w + half;
  const b = block(3);
  const bRun = b + half;
  const zero = f32x4.splat(0);
  for (let j = 0; j < n; j += 4) {
    v128.store(w + (j << 2), zero);
    v128.store(b + (j << 2), zero);
  }
  for (let r: u32 = 0; r < rows; r += ROW_RUN) {
    const stop = min<u32>(r + ROW_RUN, rows);
    for (let j = 0; j < n; j += 4) {
      v128.store(wRun + (j << 2), zero);
      v128.store(bRun + (j << 2), zero);
    }
    for (let i = r; i < stop; i++) {
      const m = f32x4.splat(load<f32>(means + ((<usize>i) << 2)));
      const s = f32x4.splat(load<f32>(rstds + ((<usize>i) << 2)));
      const xv = widen(x, xType, i * cols + c, n, block(0));
      const dv = widen(dy, dyType, i * cols + c, n, block(1));
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        const d = v128.load(dv + o);
        const hat = normalized(v128.load(xv + o), m, s, true);
        v128.store(wRun + o, f32x4.add(v128.load(wRun + o), f32x4.mul(d, hat)));
        v128.store(bRun + o, f32x4.add(v128.load(bRun + o), d));
      }
    }
    for (let j = 0; j < n; j += 4) {
      const o = j << 2;
      v128.store(w + o, f32x4.add(v128.load(w + o), v128.load(wRun + o)));
      v128.store(b + o, f32x4.add(v128.load(b + o), v128.load(bRun + o)));
    }
  }
}
