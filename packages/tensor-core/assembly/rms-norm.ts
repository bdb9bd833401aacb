// These kernels normalize rows by their root mean square, and compute both gradients in one pass. A
// unit of work is a block of rows, for which it writes dx and the block's part of dWeight. Another
// command then adds up the parts in order.

import { laneMask, loadFloat, narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { deviations } from './layer-norm';
import { BLOCK, NORM_PART_ROWS } from './layout';
import { sumLanes } from './reduce';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

@inline
function block(i: usize): usize {
  return scratchBase + BLOCK_BYTES * i;
}

/** Writes a row of x + residual into `sum`, rounded to its dtype. */
export function addRow(
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

/**
 * The arguments are x, dtype, residual or 0, dtype, weight or 0, dtype, sum or 0, dtype, out,
 * dtype, rstd, rows, cols, eps and the offset of the weight. Rows are scaled by weight + offset.
 */
export function rmsNorm(slot: usize, chunk: u32, chunks: u32): void {
  const residual = <usize>arg(slot, 2);
  const weight = <usize>arg(slot, 4);
  const x = <usize>(residual != 0 ? arg(slot, 6) : arg(slot, 0));
  const xType = residual != 0 ? argI(slot, 7) : argI(slot, 1);
  const out = <usize>arg(slot, 8);
  const outType = argI(slot, 9);
  const rstds = <usize>arg(slot, 10);
  const cols = arg(slot, 12);
  const eps = <f64>argF(slot, 13);
  const offset = f32x4.splat(argF(slot, 14));
  const end = chunkStart(arg(slot, 11), chunk + 1, chunks, 1);
  for (let r = chunkStart(arg(slot, 11), chunk, chunks, 1); r < end; r++) {
    const at = r * cols;
    if (residual != 0) {
      addRow(<usize>arg(slot, 0), argI(slot, 1), residual, argI(slot, 3), x, xType, at, cols);
    }
    let squares: f64 = 0;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      squares += <f64>deviations(widen(x, xType, at + i, n, block(0)), n, 0);
    }
    const rstd = <f32>(1 / sqrt<f64>(squares / <f64>cols + eps));
    store<f32>(rstds + ((<usize>r) << 2), rstd);
    const s = f32x4.splat(rstd);
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      const xv = widen(x, xType, at + i, n, block(0));
      const wv = weight != 0 ? widen(weight, argI(slot, 5), i, n, block(1)) : 0;
      const results = block(2);
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        const hat = f32x4.mul(v128.load(xv + o), s);
        const scaled = wv != 0 ? f32x4.mul(hat, f32x4.add(v128.load(wv + o), offset)) : hat;
        v128.store(results + o, scaled);
      }
      narrow(results, out, outType, at + i, n);
    }
  }
}

/**
 * The arguments are x, dtype, weight or 0, dtype, rstd, dtype, dy, dtype, dSum or 0, dtype, dx or
 * 0, dtype, parts of dWeight or 0, rows, cols and the offset of the weight. The parts are f32
 * [ceil(rows / NORM_PART_ROWS), cols].
 */
export function rmsNormBackward(slot: usize, chunk: u32, chunks: u32): void {
  const parts = <usize>arg(slot, 12);
  const rows = arg(slot, 13);
  const cols = arg(slot, 14);
  const end = chunkStart(rows, chunk + 1, chunks, NORM_PART_ROWS);
  for (let r = chunkStart(rows, chunk, chunks, NORM_PART_ROWS); r < end; r++) {
    const rstd = loadFloat(<usize>arg(slot, 4), argI(slot, 5), r);
    if (arg(slot, 10) != 0) {
      inputGradient(slot, r, cols, rstd);
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

/** Computes dx = rstd * (g - xhat * mean(g * xhat)) + dSum, with g = dy * (weight + offset). */
function inputGradient(slot: usize, r: u32, cols: u32, rstd: f32): void {
  const x = <usize>arg(slot, 0);
  const weight = <usize>arg(slot, 2);
  const dSum = <usize>arg(slot, 8);
  const dx = <usize>arg(slot, 10);
  const dxType = argI(slot, 11);
  const offset = f32x4.splat(argF(slot, 15));
  const s = f32x4.splat(rstd);
  const at = r * cols;
  let sum: f64 = 0;
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const xv = widen(x, argI(slot, 1), at + i, n, block(0));
    const g = upstream(slot, weight, offset, at, i, n);
    let run = f32x4.splat(0);
    for (let j = 0; j < n; j += 4) {
      const o = j << 2;
      let product = f32x4.mul(v128.load(g + o), f32x4.mul(v128.load(xv + o), s));
      if (j + 4 > n) {
        product = v128.and(product, laneMask(n - j));
      }
      run = f32x4.add(run, product);
    }
    sum += <f64>sumLanes(run);
  }
  const mean = f32x4.splat(<f32>(sum / <f64>cols));
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const xv = widen(x, argI(slot, 1), at + i, n, block(0));
    const g = upstream(slot, weight, offset, at, i, n);
    const dv = dSum != 0 ? widen(dSum, argI(slot, 9), at + i, n, block(3)) : 0;
    const results = block(2);
    for (let j = 0; j < n; j += 4) {
      const o = j << 2;
      const hat = f32x4.mul(v128.load(xv + o), s);
      let v = f32x4.mul(s, f32x4.sub(v128.load(g + o), f32x4.mul(hat, mean)));
      if (dv != 0) {
        v = f32x4.add(v, v128.load(dv + o));
      }
      v128.store(results + o, v);
    }
    narrow(results, dx, dxType, at + i, n);
  }
}

/**
 * Returns the address of dy * (weight + offset) for a run of columns: block 2, or dy itself if
 * there is no weight and dy is f32.
 */
function upstream(slot: usize, weight: usize, offset: v128, at: u32, i: u32, n: i32): usize {
  const dv = widen(<usize>arg(slot, 6), argI(slot, 7), at + i, n, block(2));
  if (weight == 0) {
    return dv;
  }
  const wv = widen(weight, argI(slot, 3), i, n, block(1));
  const g = block(2);
  for (let j = 0; j < n; j += 4) {
    const o = j << 2;
    v128.store(g + o, f32x4.mul(v128.load(dv + o), f32x4.add(v128.load(wv + o), offset)));
  }
  return g;
}

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
