// These are Adam, AdamW and SGD over segments of flat views. The host computes in f64 what depends
// on a group alone, such as lr / bias1.

import { storePartial, widen } from './convert';
import { BLOCK } from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';

const ADAM_GROUP_BYTES: usize = 36;
const SGD_GROUP_BYTES: usize = 24;

/**
 * The arguments are param, grad, dtype, expAvg, expAvgSq, gradScale or 0, size, groups, segments
 * and the number of segments. A group has nine f32: decay factor, wd, beta1, 1 - beta1, beta2, 1 -
 * beta2, lr / bias1, sqrt(bias2) and eps.
 */
export function adam(slot: usize, chunk: u32, chunks: u32): void {
  eachBlock(slot, chunk, chunks, 5, ADAM_GROUP_BYTES, adamBlock);
}

function adamBlock(slot: usize, group: usize, scale: f32, at: u32, n: i32): void {
  const o = (<usize>at) << 2;
  const p = <usize>arg(slot, 0) + o;
  const m = <usize>arg(slot, 3) + o;
  const v = <usize>arg(slot, 4) + o;
  const g = widen(<usize>arg(slot, 1), argI(slot, 2), at, n, scratchBase);
  const gradScale = f32x4.splat(scale);
  const decay = v128.load_splat<f32>(group);
  const coupled = v128.load_splat<f32>(group, 4);
  // Without this, a weight decay of 0 times a NaN in param would be NaN.
  const isCoupled = load<f32>(group, 4) != 0;
  const beta1 = v128.load_splat<f32>(group, 8);
  const rest1 = v128.load_splat<f32>(group, 12);
  const beta2 = v128.load_splat<f32>(group, 16);
  const rest2 = v128.load_splat<f32>(group, 20);
  const step = v128.load_splat<f32>(group, 24);
  const root = v128.load_splat<f32>(group, 28);
  const eps = v128.load_splat<f32>(group, 32);
  for (let i = 0; i < n; i += 4) {
    const k = i << 2;
    const old = v128.load(p + k);
    let grad = f32x4.mul(v128.load(g + k), gradScale);
    if (isCoupled) grad = f32x4.add(grad, f32x4.mul(coupled, old));
    const avg = f32x4.add(f32x4.mul(v128.load(m + k), beta1), f32x4.mul(grad, rest1));
    const sq = f32x4.add(
      f32x4.mul(v128.load(v + k), beta2),
      f32x4.mul(f32x4.mul(grad, grad), rest2),
    );
    const denominator = f32x4.add(f32x4.div(f32x4.sqrt(sq), root), eps);
    const moved = f32x4.sub(
      f32x4.mul(old, decay),
      f32x4.div(f32x4.mul(step, avg), denominator),
    );
    storeFirst(p + k, moved, n - i);
    storeFirst(m + k, avg, n - i);
    storeFirst(v + k, sq, n - i);
  }
}

/**
 * The arguments are param, grad, dtype, momentum buffer or 0, gradScale or 0, size, groups,
 * segments and the number of segments. A group has six f32: lr, momentum, 1 - dampening, wd,
 * nesterov and first step (the last two are 0 or 1).
 */
export function sgd(slot: usize, chunk: u32, chunks: u32): void {
  eachBlock(slot, chunk, chunks, 4, SGD_GROUP_BYTES, sgdBlock);
}

function sgdBlock(slot: usize, group: usize, scale: f32, at: u32, n: i32): void {
  const o = (<usize>at) << 2;
  const p = <usize>arg(slot, 0) + o;
  const buffer = <usize>arg(slot, 3);
  const b = buffer + o;
  const g = widen(<usize>arg(slot, 1), argI(slot, 2), at, n, scratchBase);
  const gradScale = f32x4.splat(scale);
  const lr = v128.load_splat<f32>(group);
  const momentum = v128.load_splat<f32>(group, 4);
  const rest = v128.load_splat<f32>(group, 8);
  const wd = v128.load_splat<f32>(group, 12);
  const hasDecay = load<f32>(group, 12) != 0;
  const nesterov = load<f32>(group, 16) != 0;
  const first = load<f32>(group, 20) != 0;
  const hasMomentum = buffer != 0 && load<f32>(group, 4) != 0;
  for (let i = 0; i < n; i += 4) {
    const k = i << 2;
    const old = v128.load(p + k);
    let grad = f32x4.mul(v128.load(g + k), gradScale);
    if (hasDecay) grad = f32x4.add(grad, f32x4.mul(wd, old));
    if (hasMomentum) {
      const next = first
        ? grad
        : f32x4.add(f32x4.mul(v128.load(b + k), momentum), f32x4.mul(grad, rest));
      storeFirst(b + k, next, n - i);
      grad = nesterov ? f32x4.add(grad, f32x4.mul(momentum, next)) : next;
    }
    const moved = f32x4.sub(old, f32x4.mul(lr, grad));
    storeFirst(p + k, moved, n - i);
  }
}

/**
 * Calls `block` for this chunk's part of every segment. The arguments from `first` on are gradScale
 * or 0, size, groups, segments and the number of segments. A segment has three words: start, length
 * and group.
 */
function eachBlock(
  slot: usize,
  chunk: u32,
  chunks: u32,
  first: i32,
  groupBytes: usize,
  block: (slot: usize, group: usize, scale: f32, at: u32, n: i32) => void,
): void {
  const scaleAt = <usize>arg(slot, first);
  const size = arg(slot, first + 1);
  const groups = <usize>arg(slot, first + 2);
  const segments = <usize>arg(slot, first + 3);
  const count = arg(slot, first + 4);
  const scale: f32 = scaleAt != 0 ? load<f32>(scaleAt) : 1;
  const start = chunkStart(size, chunk, chunks, 64);
  const end = chunkStart(size, chunk + 1, chunks, 64);
  for (let s: u32 = 0; s < count; s++) {
    const segment = segments + <usize>s * 12;
    const from = max<u32>(load<u32>(segment), start);
    const to = min<u32>(load<u32>(segment) + load<u32>(segment, 4), end);
    const group = groups + <usize>load<u32>(segment, 8) * groupBytes;
    for (let at = from; at < to; at += BLOCK) {
      block(slot, group, scale, at, <i32>min<u32>(to - at, BLOCK));
    }
  }
}

/** Stores four elements, or the first `left` of them if fewer are left. */
@inline
function storeFirst(at: usize, value: v128, left: i32): void {
  if (left >= 4) v128.store(at, value);
  else storePartial(at, value, left);
}
