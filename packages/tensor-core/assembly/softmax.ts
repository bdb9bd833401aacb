// These kernels compute softmax and log-softmax over rows, causal or not, and their gradients. One
// thread works on a row. A row that fits a block keeps its exponentials in scratch, a longer one
// computes them twice.

import { laneMask, narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK } from './layout';
import { exp4 } from './math';
import { topOfBlock, sumBlock, sumLanes } from './reduce';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

/** The arguments are x, dtype, out, dtype, rows, cols, scale, isLog and causalRows. */
export function softmax(slot: usize, chunk: u32, chunks: u32): void {
  const rows = arg(slot, 4);
  const cols = arg(slot, 5);
  const causal = arg(slot, 8);
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    let visible = cols;
    if (causal != 0) {
      const last = <i64>(r % causal) + <i64>cols - <i64>causal + 1;
      visible = <u32>max<i64>(0, min<i64>(last, cols));
    }
    softmaxRow(slot, r * cols, visible, cols);
  }
}

function softmaxRow(slot: usize, at: u32, visible: u32, cols: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 2);
  const outType = argI(slot, 3);
  const scale = argF(slot, 6);
  const isLog = argI(slot, 7) != 0;
  const results = scratchBase + BLOCK_BYTES;

  let top: f32 = -Infinity;
  let v: usize = 0;
  for (let i: u32 = 0; i < visible; i += BLOCK) {
    const n = <i32>min<u32>(visible - i, BLOCK);
    v = scaled(x, xType, at + i, n, scale);
    top = max<f32>(top, topOfBlock(v, n));
  }
  // Where the row is one block, v still holds it.
  const single = visible <= <u32>BLOCK;
  let sum: f64 = 0;
  for (let i: u32 = 0; i < visible; i += BLOCK) {
    const n = <i32>min<u32>(visible - i, BLOCK);
    const s = single ? v : scaled(x, xType, at + i, n, scale);
    sum += <f64>exponentials(s, results, n, top);
  }
  const inverse = f32x4.splat(<f32>(1 / sum));
  // The maximum and the logarithm are subtracted one after the other, since their sum would lose
  // digits of the smaller one.
  const first = f32x4.splat(top);
  const second = f32x4.splat(<f32>Math.log(sum));
  for (let i: u32 = 0; i < visible; i += BLOCK) {
    const n = <i32>min<u32>(visible - i, BLOCK);
    const s = single ? v : scaled(x, xType, at + i, n, scale);
    if (isLog) {
      for (let j = 0; j < n; j += 4) {
        const d = f32x4.sub(v128.load(s + (j << 2)), first);
        v128.store(results + (j << 2), f32x4.sub(d, second));
      }
    } else {
      if (!single) {
        exponentials(s, results, n, top);
      }
      for (let j = 0; j < n; j += 4) {
        const o = results + (j << 2);
        v128.store(o, f32x4.mul(v128.load(o), inverse));
      }
    }
    narrow(results, out, outType, at + i, n);
  }
  if (visible < cols) {
    const hidden = f32x4.splat(isLog ? -Infinity : 0);
    for (let j = 0; j < BLOCK; j += 4) {
      v128.store(results + (j << 2), hidden);
    }
    for (let i = visible; i < cols; i += BLOCK) {
      narrow(results, out, outType, at + i, <i32>min<u32>(cols - i, BLOCK));
    }
  }
}

/** Computes scale * x into the first block of scratch and returns its address. */
function scaled(x: usize, dtype: i32, at: u32, n: i32, scale: f32): usize {
  const v = widen(x, dtype, at, n, scratchBase);
  const s = f32x4.splat(scale);
  for (let j = 0; j < n; j += 4) {
    v128.store(scratchBase + (j << 2), f32x4.mul(v128.load(v + (j << 2)), s));
  }
  return scratchBase;
}

/** Computes out = e^(x - top) and returns the sum of the results. */
export function exponentials(x: usize, out: usize, n: i32, top: f32): f32 {
  const t = f32x4.splat(top);
  let s = f32x4.splat(0);
  let j = 0;
  for (; j + 4 <= n; j += 4) {
    const e = exp4(f32x4.sub(v128.load(x + (j << 2)), t));
    v128.store(out + (j << 2), e);
    s = f32x4.add(s, e);
  }
  if (j < n) {
    const e = exp4(f32x4.sub(v128.load(x + (j << 2)), t));
    v128.store(out + (j << 2), e);
    s = f32x4.add(s, v128.and(e, laneMask(n - j)));
  }
  return sumLanes(s);
}

/** The arguments are y, dtype, dy, dtype, out, dtype, rows, cols, scale and isLog. */
export function softmaxBackward(slot: usize, chunk: u32, chunks: u32): void {
  const y = <usize>arg(slot, 0);
  const yType = argI(slot, 1);
  const dy = <usize>arg(slot, 2);
  const dyType = argI(slot, 3);
  const out = <usize>arg(slot, 4);
  const outType = argI(slot, 5);
  const rows = arg(slot, 6);
  const cols = arg(slot, 7);
  const scale = f32x4.splat(argF(slot, 8));
  const isLog = argI(slot, 9) != 0;
  const scratch2 = scratchBase + BLOCK_BYTES;
  const results = scratch2 + BLOCK_BYTES;
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    let sum: f64 = 0;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      const dv = widen(dy, dyType, r * cols + i, n, scratch2);
      if (isLog) {
        sum += <f64>sumBlock(dv, n);
      } else {
        sum += <f64>dot(widen(y, yType, r * cols + i, n, scratchBase), dv, n);
      }
    }
    const s = f32x4.splat(<f32>sum);
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      const yv = widen(y, yType, r * cols + i, n, scratchBase);
      const dv = widen(dy, dyType, r * cols + i, n, scratch2);
      for (let j = 0; j < n; j += 4) {
        const a = v128.load(yv + (j << 2));
        const d = v128.load(dv + (j << 2));
        const g = isLog
          ? f32x4.sub(d, f32x4.mul(exp4(a), s))
          : f32x4.mul(a, f32x4.sub(d, s));
        v128.store(results + (j << 2), f32x4.mul(g, scale));
      }
      narrow(results, out, outType, r * cols + i, n);
    }
  }
}

export function dot(a: usize, b: usize, n: i32): f32 {
  let s0 = f32x4.splat(0);
  let s1 = f32x4.splat(0);
  let i = 0;
  for (; i + 8 <= n; i += 8) {
    const o = i << 2;
    s0 = f32x4.add(s0, f32x4.mul(v128.load(a + o), v128.load(b + o)));
    s1 = f32x4.add(s1, f32x4.mul(v128.load(a + o, 16), v128.load(b + o, 16)));
  }
  for (; i < n; i += 4) {
    const o = i << 2;
    const p = f32x4.mul(v128.load(a + o), v128.load(b + o));
    s0 = f32x4.add(s0, v128.and(p, laneMask(n - i)));
  }
  return sumLanes(f32x4.add(s0, s1));
}
