// These kernels normalize rows: layer norm, which centers them and divides by their standard
// deviation, and RMS norm, which divides by their root mean square. All gradients are computed in
// one pass. A unit of it is a block of rows, for which it writes dx and the block's part of the
// parameters' gradients. Another command then adds up the parts in order.
//
// `isCentered` is a constant of each caller, so that the tests of it are compiled away.

import { laneMask, narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK, COLUMN_BLOCK, NORM_PART_ROWS } from './layout';
import { sumBlock, sumLanes } from './reduce';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

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
 * or 0, dtype, parts of dWeight or 0, parts of dBias or 0, rows, cols and the offset of the weight.
 * Rows are centered if their means are given. The parts are f32 [ceil(rows / NORM_PART_ROWS),
 * cols].
 */
export function rowNormBackward(slot: usize, chunk: u32, chunks: u32): void {
  if (arg(slot, 4) != 0) {
    rowGradients(slot, chunk, chunks, true);
  } else {
    rowGradients(slot, chunk, chunks, false);
  }
}

@inline
function rowGradients(slot: usize, chunk: u32, chunks: u32, isCentered: bool): void {
  const weights = <usize>arg(slot, 12);
  const biases = <usize>arg(slot, 13);
  const rows = arg(slot, 14);
  const cols = arg(slot, 15);
  const end = chunkStart(rows, chunk + 1, chunks, NORM_PART_ROWS);
  for (let r = chunkStart(rows, chunk, chunks, NORM_PART_ROWS); r < end; r++) {
    const mean: f32 = isCentered ? load<f32>(<usize>arg(slot, 4) + ((<usize>r) << 2)) : 0;
    const rstd = load<f32>(<usize>arg(slot, 5) + ((<usize>r) << 2));
    if (arg(slot, 10) != 0) {
      inputGradient(slot, r, cols, mean, rstd, isCentered);
    }
    if (weights != 0 || biases != 0) {
      const part = (<usize>(r / NORM_PART_ROWS * cols)) << 2;
      const w = weights != 0 ? weights + part : 0;
      const b = biases != 0 ? biases + part : 0;
      if (r % NORM_PART_ROWS == 0) {
        clear(w, cols);
        clear(b, cols);
      }
      addParameterGradients(slot, r, cols, mean, rstd, w, b, isCentered);
    }
  }
}

/** Fills sums with zeros, where they are wanted. */
@inline
function clear(sums: usize, cols: u32): void {
  if (sums != 0) {
    memory.fill(sums, 0, (<usize>cols) << 2);
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
  const offset = f32x4.splat(argF(slot, 16));
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

/** Adds a row's dy * xhat to a part of dWeight, and its dy to one of dBias, where they are not 0. */
@inline
function addParameterGradients(
  slot: usize,
  r: u32,
  cols: u32,
  mean: f32,
  rstd: f32,
  weights: usize,
  biases: usize,
  isCentered: bool,
): void {
  const m = f32x4.splat(mean);
  const s = f32x4.splat(rstd);
  const at = r * cols;
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const dv = widen(<usize>arg(slot, 6), argI(slot, 7), at + i, n, block(1));
    if (isCentered && biases != 0) {
      addTo(biases + ((<usize>i) << 2), dv, n);
    }
    if (weights == 0) {
      continue;
    }
    const xv = widen(<usize>arg(slot, 0), argI(slot, 1), at + i, n, block(0));
    const sums = weights + ((<usize>i) << 2);
    let j = 0;
    for (; j + 4 <= n; j += 4) {
      const o = j << 2;
      const hat = normalized(v128.load(xv + o), m, s, isCentered);
      const product = f32x4.mul(v128.load(dv + o), hat);
      v128.store(sums + o, f32x4.add(v128.load(sums + o), product));
    }
    for (; j < n; j++) {
      const o = j << 2;
      const d = isCentered ? load<f32>(xv + o) - mean : load<f32>(xv + o);
      store<f32>(sums + o, load<f32>(sums + o) + load<f32>(dv + o) * (d * rstd));
    }
  }
}

/** Adds n values to sums, behind which others may stand. */
@inline
function addTo(sums: usize, values: usize, n: i32): void {
  let j = 0;
  for (; j + 4 <= n; j += 4) {
    const o = j << 2;
    v128.store(sums + o, f32x4.add(v128.load(sums + o), v128.load(values + o)));
  }
  for (; j < n; j++) {
    const o = j << 2;
    store<f32>(sums + o, load<f32>(sums + o) + load<f32>(values + o));
  }
}

/**
 * Adds up the parts of a layer norm's gradients, one after the other. The arguments are the parts
 * of dWeight, dWeight or 0, dtype, the parts of dBias, dBias or 0, dtype, the number of parts and
 * cols. A unit is COLUMN_BLOCK columns of both.
 */
export function rowNormPartSums(slot: usize, chunk: u32, chunks: u32): void {
  const cols = arg(slot, 7);
  const end = chunkStart(cols, chunk + 1, chunks, COLUMN_BLOCK);
  for (let c = chunkStart(cols, chunk, chunks, COLUMN_BLOCK); c < end; c += COLUMN_BLOCK) {
    const n = <i32>min<u32>(end - c, COLUMN_BLOCK);
    for (let i = 0; i < 6; i += 3) {
      const out = <usize>arg(slot, i + 1);
      if (out != 0) {
        sumParts(<usize>arg(slot, i), arg(slot, 6), cols, c, n);
        narrow(block(0), out, argI(slot, i + 2), c, n);
      }
    }
  }
}

/** Leaves the sums of n columns in block 0. */
function sumParts(parts: usize, numParts: u32, cols: u32, c: u32, n: i32): void {
  const sums = block(0);
  memory.fill(sums, 0, (<usize>n) << 2);
  for (let p: u32 = 0; p < numParts; p++) {
    addTo(sums, parts + ((<usize>(p * cols + c)) << 2), n);
  }
}
