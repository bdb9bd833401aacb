// These kernels normalize rows (layer normalization) and compute the gradients of input, weight and
// bias.

import { laneMask, loadFloat, narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK } from './layout';
import { sumBlock, sumLanes } from './reduce';
import { addRow } from './rms-norm';
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
 * The arguments are x, dtype, weight or 0, dtype, bias or 0, dtype, out, dtype, mean, rstd, rows,
 * cols, eps, residual or 0, dtype, sum or 0 and dtype. With a residual, x + residual is stored in
 * sum and normalized.
 */
export function layerNorm(slot: usize, chunk: u32, chunks: u32): void {
  const residual = <usize>arg(slot, 13);
  const x = <usize>(residual != 0 ? arg(slot, 15) : arg(slot, 0));
  const xType = residual != 0 ? argI(slot, 16) : argI(slot, 1);
  const weight = <usize>arg(slot, 2);
  const bias = <usize>arg(slot, 4);
  const out = <usize>arg(slot, 6);
  const outType = argI(slot, 7);
  const means = <usize>arg(slot, 8);
  const rstds = <usize>arg(slot, 9);
  const rows = arg(slot, 10);
  const cols = arg(slot, 11);
  const eps = <f64>argF(slot, 12);
  const one = f32x4.splat(1);
  const zero = f32x4.splat(0);
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    const at = r * cols;
    if (residual != 0) {
      addRow(<usize>arg(slot, 0), argI(slot, 1), residual, argI(slot, 14), x, xType, at, cols);
    }
    let sum: f64 = 0;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      sum += <f64>sumBlock(widen(x, xType, at + i, n, block(0)), n);
    }
    const mean = <f32>(sum / <f64>cols);
    let squares: f64 = 0;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      squares += <f64>deviations(widen(x, xType, at + i, n, block(0)), n, mean);
    }
    const rstd = <f32>(1 / sqrt<f64>(squares / <f64>cols + eps));
    store<f32>(means + ((<usize>r) << 2), mean);
    store<f32>(rstds + ((<usize>r) << 2), rstd);
    const m = f32x4.splat(mean);
    const s = f32x4.splat(rstd);
    const results = block(3);
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      const xv = widen(x, xType, at + i, n, block(0));
      const wv = weight != 0 ? widen(weight, argI(slot, 3), i, n, block(1)) : 0;
      const bv = bias != 0 ? widen(bias, argI(slot, 5), i, n, block(2)) : 0;
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        const hat = f32x4.mul(f32x4.sub(v128.load(xv + o), m), s);
        const w = wv != 0 ? v128.load(wv + o) : one;
        const b = bv != 0 ? v128.load(bv + o) : zero;
        v128.store(results + o, f32x4.add(f32x4.mul(hat, w), b));
      }
      narrow(results, out, outType, at + i, n);
    }
  }
}

/** Returns the sum of (x - mean)^2 of n values. */
export function deviations(x: usize, n: i32, mean: f32): f32 {
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

/**
 * The arguments are x, dtype, weight or 0, dtype, mean, dtype, rstd, dtype, dy, dtype, dx, dtype,
 * rows, cols, dSum or 0 and dtype.
 */
export function layerNormBackward(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const weight = <usize>arg(slot, 2);
  const dy = <usize>arg(slot, 8);
  const dyType = argI(slot, 9);
  const dx = <usize>arg(slot, 10);
  const dxType = argI(slot, 11);
  const rows = arg(slot, 12);
  const cols = arg(slot, 13);
  const one = f32x4.splat(1);
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    const at = r * cols;
    const m = f32x4.splat(loadFloat(<usize>arg(slot, 4), argI(slot, 5), r));
    const s = f32x4.splat(loadFloat(<usize>arg(slot, 6), argI(slot, 7), r));
    // With g = dy * weight, dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), plus dSum.
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
        const hat = f32x4.mul(f32x4.sub(v128.load(xv + o), m), s);
        let g = f32x4.mul(v128.load(dv + o), wv != 0 ? v128.load(wv + o) : one);
        let gx = f32x4.mul(g, hat);
        if (j + 4 > n) {
          g = v128.and(g, laneMask(n - j));
          gx = v128.and(gx, laneMask(n - j));
        }
        g0 = f32x4.add(g0, g);
        gx0 = f32x4.add(gx0, gx);
      }
      sumG += <f64>sumLanes(g0);
      sumGX += <f64>sumLanes(gx0);
    }
    const meanG = f32x4.splat(<f32>(sumG / <f64>cols));
    const meanGX = f32x4.splat(<f32>(sumGX / <f64>cols));
    const dSum = <usize>arg(slot, 14);
    const results = block(2);
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      const xv = widen(x, xType, at + i, n, block(0));
      const wv = weight != 0 ? widen(weight, argI(slot, 3), i, n, block(1)) : 0;
      const dv = widen(dy, dyType, at + i, n, block(2));
      const sv = dSum != 0 ? widen(dSum, argI(slot, 15), at + i, n, block(3)) : 0;
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        const hat = f32x4.mul(f32x4.sub(v128.load(xv + o), m), s);
        const g = f32x4.mul(v128.load(dv + o), wv != 0 ? v128.load(wv + o) : one);
        const centered = f32x4.sub(f32x4.sub(g, meanG), f32x4.mul(hat, meanGX));
        const own = f32x4.mul(s, centered);
        v128.store(results + o, sv != 0 ? f32x4.add(own, v128.load(sv + o)) : own);
      }
      narrow(results, dx, dxType, at + i, n);
    }
  }
}

/**
 * The arguments are x, dtype, mean, dtype, rstd, dtype, dy, dtype, dWeight or 0, dtype, dBias or 0,
 * dtype, rows and cols. A unit of work is PARAM_COLUMNS columns over all rows.
 */
export function layerNormParamGrad(slot: usize, chunk: u32, chunks: u32): void {
  const dWeight = <usize>arg(slot, 8);
  const dBias = <usize>arg(slot, 10);
  const rows = arg(slot, 12);
  const cols = arg(slot, 13);
  const start = chunkStart(cols, chunk, chunks, PARAM_COLUMNS);
  const end = chunkStart(cols, chunk + 1, chunks, PARAM_COLUMNS);
  for (let c = start; c < end; c += BLOCK / 2) {
    const n = <i32>min<u32>(end - c, BLOCK / 2);
    paramColumns(slot, c, n, rows, cols);
    if (dWeight != 0) {
      narrow(block(2), dWeight, argI(slot, 9), c, n);
    }
    if (dBias != 0) {
      narrow(block(3), dBias, argI(slot, 11), c, n);
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
  const rstds = <usize>arg(slot, 4);
  const dy = <usize>arg(slot, 6);
  const dyType = argI(slot, 7);
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
      const m = f32x4.splat(loadFloat(means, argI(slot, 3), i));
      const s = f32x4.splat(loadFloat(rstds, argI(slot, 5), i));
      const xv = widen(x, xType, i * cols + c, n, block(0));
      const dv = widen(dy, dyType, i * cols + c, n, block(1));
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        const d = v128.load(dv + o);
        const hat = f32x4.mul(f32x4.sub(v128.load(xv + o), m), s);
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
