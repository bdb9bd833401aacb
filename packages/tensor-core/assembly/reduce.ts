// These kernels compute sums, means and extrema over the middle of [outer, dim, inner], and the
// gradient of an extremum. Where inner is 1, sums run in f32 over blocks and in f64 over the
// blocks. Elsewhere they run in f32 over runs of ROW_RUN rows and over the runs. The order depends
// on the shape alone.

import { laneMask, loadFloat, narrow, storeFloat, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import {
  BLOCK,
  COLUMN_BLOCK,
  REDUCE_MAX,
  REDUCE_MEAN,
  REDUCE_MIN,
} from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';

/** The number of rows that are added in f32 before their sum is added to the total. */
const ROW_RUN: u32 = 64;

@inline
export function sumLanes(v: v128): f32 {
  return (
    f32x4.extract_lane(v, 0) +
    f32x4.extract_lane(v, 1) +
    (f32x4.extract_lane(v, 2) + f32x4.extract_lane(v, 3))
  );
}

@inline
export function maxLanes(v: v128): f32 {
  return max<f32>(
    max<f32>(f32x4.extract_lane(v, 0), f32x4.extract_lane(v, 1)),
    max<f32>(f32x4.extract_lane(v, 2), f32x4.extract_lane(v, 3)),
  );
}

@inline
function minLanes(v: v128): f32 {
  return min<f32>(
    min<f32>(f32x4.extract_lane(v, 0), f32x4.extract_lane(v, 1)),
    min<f32>(f32x4.extract_lane(v, 2), f32x4.extract_lane(v, 3)),
  );
}

/** Returns the sum of n values, by two accumulators of four lanes. */
export function sumBlock(x: usize, n: i32): f32 {
  let s0 = f32x4.splat(0);
  let s1 = f32x4.splat(0);
  let i = 0;
  for (; i + 8 <= n; i += 8) {
    s0 = f32x4.add(s0, v128.load(x + (i << 2)));
    s1 = f32x4.add(s1, v128.load(x + (i << 2), 16));
  }
  for (; i < n; i += 4) {
    s0 = f32x4.add(s0, v128.and(v128.load(x + (i << 2)), laneMask(n - i)));
  }
  return sumLanes(f32x4.add(s0, s1));
}

/**
 * Returns the largest of n values. NaN may be passed over, which is fine for callers whose sums
 * show it anyway.
 */
export function topOfBlock(x: usize, n: i32): f32 {
  let m0 = f32x4.splat(-Infinity);
  let m1 = m0;
  let i = 0;
  for (; i + 8 <= n; i += 8) {
    m0 = f32x4.pmax(m0, v128.load(x + (i << 2)));
    m1 = f32x4.pmax(m1, v128.load(x + (i << 2), 16));
  }
  for (; i < n; i += 4) {
    const v = v128.load(x + (i << 2));
    m0 = f32x4.pmax(m0, v128.bitselect(v, f32x4.splat(-Infinity), laneMask(n - i)));
  }
  return maxLanes(f32x4.pmax(m0, m1));
}

function maxBlock(x: usize, n: i32): f32 {
  let m = f32x4.splat(-Infinity);
  let i = 0;
  for (; i + 4 <= n; i += 4) {
    m = f32x4.max(m, v128.load(x + (i << 2)));
  }
  if (i < n) {
    const v = v128.load(x + (i << 2));
    m = f32x4.max(m, v128.bitselect(v, f32x4.splat(-Infinity), laneMask(n - i)));
  }
  return maxLanes(m);
}

function minBlock(x: usize, n: i32): f32 {
  let m = f32x4.splat(Infinity);
  let i = 0;
  for (; i + 4 <= n; i += 4) {
    m = f32x4.min(m, v128.load(x + (i << 2)));
  }
  if (i < n) {
    const v = v128.load(x + (i << 2));
    m = f32x4.min(m, v128.bitselect(v, f32x4.splat(Infinity), laneMask(n - i)));
  }
  return minLanes(m);
}

/** The arguments are kind, x, dtype, out, dtype, outer, dim and inner. */
export function reduce(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  if (kind > REDUCE_MIN) {
    unreachable();
  }
  const x = <usize>arg(slot, 1);
  const xType = argI(slot, 2);
  const out = <usize>arg(slot, 3);
  const outType = argI(slot, 4);
  const outer = arg(slot, 5);
  const dim = arg(slot, 6);
  const inner = arg(slot, 7);
  if (inner == 1) {
    const end = chunkStart(outer, chunk + 1, chunks, 1);
    for (let r = chunkStart(outer, chunk, chunks, 1); r < end; r++) {
      storeFloat(out, outType, r, reduceRow(kind, x, xType, r * dim, dim));
    }
    return;
  }
  const blocks = (inner + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
  const units = outer * blocks;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let u = chunkStart(units, chunk, chunks, 1); u < end; u++) {
    const o = u / blocks;
    const column = (u - o * blocks) * COLUMN_BLOCK;
    const n = <i32>min<u32>(inner - column, COLUMN_BLOCK);
    reduceColumns(kind, x, xType, o * dim * inner + column, dim, inner, n);
    narrow(scratchBase, out, outType, o * inner + column, n);
  }
}

function reduceRow(kind: i32, x: usize, dtype: i32, at: u32, dim: u32): f32 {
  if (kind <= REDUCE_MEAN) {
    let sum: f64 = 0;
    for (let i: u32 = 0; i < dim; i += BLOCK) {
      const n = <i32>min<u32>(dim - i, BLOCK);
      sum += <f64>sumBlock(widen(x, dtype, at + i, n, scratchBase), n);
    }
    return <f32>(kind == REDUCE_MEAN ? sum / <f64>dim : sum);
  }
  let r: f32 = kind == REDUCE_MAX ? -Infinity : Infinity;
  for (let i: u32 = 0; i < dim; i += BLOCK) {
    const n = <i32>min<u32>(dim - i, BLOCK);
    const v = widen(x, dtype, at + i, n, scratchBase);
    r = kind == REDUCE_MAX ? max<f32>(r, maxBlock(v, n)) : min<f32>(r, minBlock(v, n));
  }
  return r;
}

/**
 * Leaves n results at the start of scratch. Whole vectors are computed, and what stands past n
 * means nothing.
 */
function reduceColumns(kind: i32, x: usize, dtype: i32, at: u32, dim: u32, inner: u32, n: i32): void {
  const total = scratchBase;
  const run = scratchBase + BLOCK_BYTES;
  const row = run + BLOCK_BYTES;
  const isSum = kind <= REDUCE_MEAN;
  const initial = f32x4.splat(isSum ? 0 : kind == REDUCE_MAX ? -Infinity : Infinity);
  for (let i = 0; i < n; i += 4) {
    v128.store(total + (i << 2), initial);
  }
  for (let d: u32 = 0; d < dim; d += ROW_RUN) {
    const stop = min<u32>(d + ROW_RUN, dim);
    for (let i = 0; i < n; i += 4) {
      v128.store(run + (i << 2), initial);
    }
    for (let r = d; r < stop; r++) {
      const v = widen(x, dtype, at + r * inner, n, row);
      combine(kind, run, v, n);
    }
    combine(kind, total, run, n);
  }
  if (kind == REDUCE_MEAN) {
    const divisor = f32x4.splat(<f32>dim);
    for (let i = 0; i < n; i += 4) {
      v128.store(total + (i << 2), f32x4.div(v128.load(total + (i << 2)), divisor));
    }
  }
}

function combine(kind: i32, into: usize, from: usize, n: i32): void {
  if (kind <= REDUCE_MEAN) {
    for (let i = 0; i < n; i += 4) {
      const o = i << 2;
      v128.store(into + o, f32x4.add(v128.load(into + o), v128.load(from + o)));
    }
  } else if (kind == REDUCE_MAX) {
    for (let i = 0; i < n; i += 4) {
      const o = i << 2;
      v128.store(into + o, f32x4.max(v128.load(into + o), v128.load(from + o)));
    }
  } else {
    for (let i = 0; i < n; i += 4) {
      const o = i << 2;
      v128.store(into + o, f32x4.min(v128.load(into + o), v128.load(from + o)));
    }
  }
}

/** The arguments are x, dtype, y, dtype, dy, dtype, out, dtype, outer, dim and inner. */
export function extremumBackward(slot: usize, chunk: u32, chunks: u32): void {
  const outer = arg(slot, 8);
  const dim = arg(slot, 9);
  const inner = arg(slot, 10);
  if (inner == 1) {
    const end = chunkStart(outer, chunk + 1, chunks, 1);
    for (let r = chunkStart(outer, chunk, chunks, 1); r < end; r++) {
      extremumRow(slot, r, dim);
    }
    return;
  }
  const blocks = (inner + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
  const units = outer * blocks;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let u = chunkStart(units, chunk, chunks, 1); u < end; u++) {
    const o = u / blocks;
    const column = (u - o * blocks) * COLUMN_BLOCK;
    const n = <i32>min<u32>(inner - column, COLUMN_BLOCK);
    extremumColumns(slot, o, column, n, dim, inner);
  }
}

function extremumRow(slot: usize, r: u32, dim: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 6);
  const outType = argI(slot, 7);
  const y = f32x4.splat(loadFloat(<usize>arg(slot, 2), argI(slot, 3), r));
  const dy = loadFloat(<usize>arg(slot, 4), argI(slot, 5), r);
  const results = scratchBase + BLOCK_BYTES;
  let count: u32 = 0;
  for (let i: u32 = 0; i < dim; i += BLOCK) {
    const n = <i32>min<u32>(dim - i, BLOCK);
    const v = widen(x, xType, r * dim + i, n, scratchBase);
    for (let j = 0; j < n; j += 4) {
      const equal = v128.and(f32x4.eq(v128.load(v + (j << 2)), y), laneMask(n - j));
      count += popcnt<i32>(i32x4.bitmask(equal));
    }
  }
  const share = f32x4.splat(dy / <f32>count);
  const elsewhere = nanWhereNan(y);
  for (let i: u32 = 0; i < dim; i += BLOCK) {
    const n = <i32>min<u32>(dim - i, BLOCK);
    const v = widen(x, xType, r * dim + i, n, scratchBase);
    for (let j = 0; j < n; j += 4) {
      const equal = f32x4.eq(v128.load(v + (j << 2)), y);
      v128.store(results + (j << 2), v128.bitselect(share, elsewhere, equal));
    }
    narrow(results, out, outType, r * dim + i, n);
  }
}

/**
 * Returns the gradient of elements that do not equal the extremum: NaN where the extremum is NaN,
 * else 0.
 */
@inline
function nanWhereNan(y: v128): v128 {
  return v128.and(f32x4.ne(y, y), f32x4.splat(NaN));
}

function extremumColumns(slot: usize, o: u32, column: u32, n: i32, dim: u32, inner: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 6);
  const outType = argI(slot, 7);
  const row = scratchBase;
  const results = scratchBase + BLOCK_BYTES;
  const shares = results + (BLOCK_BYTES >> 1);
  const ys = shares + (BLOCK_BYTES >> 1);
  const y = widen(<usize>arg(slot, 2), argI(slot, 3), o * inner + column, n, ys);
  for (let j = 0; j < n; j += 4) {
    v128.store(shares + (j << 2), f32x4.splat(0));
  }
  for (let d: u32 = 0; d < dim; d++) {
    const v = widen(x, xType, (o * dim + d) * inner + column, n, row);
    for (let j = 0; j < n; j += 4) {
      const s = shares + (j << 2);
      const equal = f32x4.eq(v128.load(v + (j << 2)), v128.load(y + (j << 2)));
      v128.store(s, f32x4.add(v128.load(s), v128.and(equal, f32x4.splat(1))));
    }
  }
  const dy = widen(<usize>arg(slot, 4), argI(slot, 5), o * inner + column, n, row);
  for (let j = 0; j < n; j += 4) {
    const s = shares + (j << 2);
    v128.store(s, f32x4.div(v128.load(dy + (j << 2)), v128.load(s)));
  }
  for (let d: u32 = 0; d < dim; d++) {
    const at = (o * dim + d) * inner + column;
    const v = widen(x, xType, at, n, row);
    for (let j = 0; j < n; j += 4) {
      const extrema = v128.load(y + (j << 2));
      const equal = f32x4.eq(v128.load(v + (j << 2)), extrema);
      const share = v128.load(shares + (j << 2));
      v128.store(results + (j << 2), v128.bitselect(share, nanWhereNan(extrema), equal));
    }
    narrow(results, out, outType, at, n);
  }
}
