// These kernels compute cross-entropy together with its log-softmax, and its gradient.

import { loadFloat, narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK } from './layout';
import { exp4 } from './math';
import { topOfBlock } from './reduce';
import { arg, argI, chunkStart, scratchBase } from './slot';
import { exponentials } from './softmax';

/**
 * The arguments are logits, dtype, targets, loss, lse, rows and cols. A target outside [0, cols) is
 * one to ignore: its loss is 0.
 */
export function crossEntropy(slot: usize, chunk: u32, chunks: u32): void {
  const logits = <usize>arg(slot, 0);
  const dtype = argI(slot, 1);
  const targets = <usize>arg(slot, 2);
  const loss = <usize>arg(slot, 3);
  const lse = <usize>arg(slot, 4);
  const rows = arg(slot, 5);
  const cols = arg(slot, 6);
  const results = scratchBase + BLOCK_BYTES;
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    const at = r * cols;
    let top: f32 = -Infinity;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      top = max<f32>(top, topOfBlock(widen(logits, dtype, at + i, n, scratchBase), n));
    }
    let sum: f64 = 0;
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      sum += <f64>exponentials(widen(logits, dtype, at + i, n, scratchBase), results, n, top);
    }
    const total = <f64>top + Math.log(sum);
    const goal = load<u32>(targets + ((<usize>r) << 2));
    const value = goal < cols ? <f32>(total - <f64>loadFloat(logits, dtype, at + goal)) : 0;
    store<f32>(loss + ((<usize>r) << 2), value);
    store<f32>(lse + ((<usize>r) << 2), <f32>total);
  }
}

/**
 * The arguments are logits, dtype, targets, lse, dLoss, out, dtype, rows, cols, first and classes.
 * The columns of the logits are the classes from `first` on, of `classes` in all, so that the
 * gradient can be computed for a part of the classes.
 */
export function crossEntropyBackward(slot: usize, chunk: u32, chunks: u32): void {
  const logits = <usize>arg(slot, 0);
  const dtype = argI(slot, 1);
  const targets = <usize>arg(slot, 2);
  const lse = <usize>arg(slot, 3);
  const dLoss = <usize>arg(slot, 4);
  const out = <usize>arg(slot, 5);
  const outType = argI(slot, 6);
  const rows = arg(slot, 7);
  const cols = arg(slot, 8);
  const first = arg(slot, 9);
  const classes = arg(slot, 10);
  const results = scratchBase + BLOCK_BYTES;
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let r = chunkStart(rows, chunk, chunks, 1); r < end; r++) {
    const target = load<u32>(targets + ((<usize>r) << 2));
    // A target below `first` wraps around to a large number, so that no column matches it.
    const goal = target - first;
    const g = load<f32>(dLoss + ((<usize>r) << 2));
    const dl = f32x4.splat(g);
    const shift = f32x4.splat(load<f32>(lse + ((<usize>r) << 2)));
    for (let i: u32 = 0; i < cols; i += BLOCK) {
      const n = <i32>min<u32>(cols - i, BLOCK);
      if (target >= classes) {
        memory.fill(results, 0, (<usize>n) << 2);
        narrow(results, out, outType, r * cols + i, n);
        continue;
      }
      const v = widen(logits, dtype, r * cols + i, n, scratchBase);
      for (let j = 0; j < n; j += 4) {
        const o = j << 2;
        v128.store(results + o, f32x4.mul(dl, exp4(f32x4.sub(v128.load(v + o), shift))));
      }
      if (goal - i < <u32>n) {
        const p = results + ((<usize>(goal - i)) << 2);
        // The slope dLoss * (softmax - 1) is computed with the subtraction first.
        const e = exp4(f32x4.sub(f32x4.splat(load<f32>(v + ((<usize>(goal - i)) << 2))), shift));
        store<f32>(p, g * (f32x4.extract_lane(e, 0) - 1));
      }
      narrow(results, out, outType, r * cols + i, n);
    }
  }
}
