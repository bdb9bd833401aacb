// These kernels compute norms of gradients, as sums over blocks joined by a fixed binary tree, and
// the factor that clips gradients. The order of additions depends on places alone, never on chunks,
// so threads don't change the result.

import { laneMask, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { NORM_BLOCK, NORM_MAX, NORM_NODE_BLOCKS, NORM_SQUARE } from './layout';
import { sumLanes } from './reduce';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

const NODE: u32 = NORM_BLOCK * NORM_NODE_BLOCKS;
/** A span in the table has three words: start, length and first node. */
const SPAN_BYTES: usize = 12;
const SMALLEST_NORMAL: f32 = 1.1754943508222875e-38;
const EPSILON: f32 = 1e-6;

/** The arguments are x, dtype, out, kind, power, nodes, spans and the number of spans. */
export function normNodes(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const dtype = argI(slot, 1);
  const out = <usize>arg(slot, 2);
  const kind = argI(slot, 3);
  const power = argF(slot, 4);
  const nodes = arg(slot, 5);
  const spans = <usize>arg(slot, 6);
  const count = arg(slot, 7);
  const stack = scratchBase + BLOCK_BYTES;
  const end = chunkStart(nodes, chunk + 1, chunks, 1);
  let span: u32 = 0;
  for (let node = chunkStart(nodes, chunk, chunks, 1); node < end; node++) {
    while (span + 1 < count && firstNode(spans, span + 1) <= node) span++;
    const place = spans + <usize>span * SPAN_BYTES;
    const skipped = (node - firstNode(spans, span)) * NODE;
    const start = load<u32>(place) + skipped;
    const length = min<u32>(load<u32>(place, 4) - skipped, NODE);
    let blocks: u32 = 0;
    for (let at: u32 = 0; at < length; at += NORM_BLOCK) {
      const n = <i32>min<u32>(length - at, NORM_BLOCK);
      const values = widen(x, dtype, start + at, n, scratchBase);
      let block = kind == NORM_SQUARE ? squares(values, n) : kind == NORM_MAX ? largest(values, n) : powers(values, n, power);
      if (block < SMALLEST_NORMAL) block = 0;
      push(stack, blocks++, block, kind == NORM_MAX);
    }
    store<f32>(out + (<usize>node << 2), top(stack, blocks, kind == NORM_MAX));
  }
}

/** The arguments are x, out, isMax, spans and the number of spans. */
export function normTree(slot: usize, _chunk: u32, _chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const out = <usize>arg(slot, 1);
  const isMax = arg(slot, 2) != 0;
  const spans = <usize>arg(slot, 3);
  const count = arg(slot, 4);
  for (let span: u32 = 0; span < count; span++) {
    const place = spans + <usize>span * SPAN_BYTES;
    const from = x + (<usize>load<u32>(place) << 2);
    const length = load<u32>(place, 4);
    for (let i: u32 = 0; i < length; i++) {
      push(scratchBase, i, load<f32>(from + (<usize>i << 2)), isMax);
    }
    store<f32>(out + (<usize>span << 2), top(scratchBase, length, isMax));
  }
}

/** The arguments are the sum of squares, norm, scale, maxNorm and unscale. */
export function clipFactor(slot: usize, _chunk: u32, _chunks: u32): void {
  const unscale = argF(slot, 4);
  const norm = sqrt<f32>(load<f32>(<usize>arg(slot, 0))) * unscale;
  let maxNorm = argF(slot, 3);
  if (maxNorm < SMALLEST_NORMAL) maxNorm = 0;
  let factor: f32 = 1;
  if (maxNorm != f32.POSITIVE_INFINITY) {
    factor = maxNorm / (norm + EPSILON);
    if (factor < SMALLEST_NORMAL) factor = 0;
    factor = min<f32>(factor, 1);
  }
  store<f32>(<usize>arg(slot, 1), norm);
  store<f32>(<usize>arg(slot, 2), factor * unscale);
}

@inline
function firstNode(spans: usize, span: u32): u32 {
  return load<u32>(spans + <usize>span * SPAN_BYTES, 8);
}

@inline
function join(left: f32, right: f32, isMax: bool): f32 {
  return isMax ? max<f32>(left, right) : left + right;
}

/**
 * Adds leaf i to the tree by joining it with the complete subtrees that it ends. The stack has one
 * subtree for each bit of i that is set.
 */
function push(stack: usize, i: u32, leaf: f32, isMax: bool): void {
  let value = leaf;
  let level: usize = stack;
  for (let left = i; (left & 1) != 0; left >>= 1) {
    value = join(load<f32>(level), value, isMax);
    level += 4;
  }
  store<f32>(level, value);
}

/**
 * Returns the root of a tree of `count` leaves. A subtree without a neighbor on the right moves up
 * unchanged.
 */
function top(stack: usize, count: u32, isMax: bool): f32 {
  let level = ctz<u32>(count);
  let value = load<f32>(stack + (<usize>level << 2));
  for (level++; level < 32; level++) {
    if (((count >> level) & 1) != 0) {
      value = join(load<f32>(stack + (<usize>level << 2)), value, isMax);
    }
  }
  return value;
}

function squares(x: usize, n: i32): f32 {
  let s0 = f32x4.splat(0);
  let s1 = f32x4.splat(0);
  let i = 0;
  for (; i + 8 <= n; i += 8) {
    const a = v128.load(x + (i << 2));
    const b = v128.load(x + (i << 2), 16);
    s0 = f32x4.add(s0, f32x4.mul(a, a));
    s1 = f32x4.add(s1, f32x4.mul(b, b));
  }
  for (; i < n; i += 4) {
    const a = v128.and(v128.load(x + (i << 2)), laneMask(n - i));
    s0 = f32x4.add(s0, f32x4.mul(a, a));
  }
  return sumLanes(f32x4.add(s0, s1));
}

/** Magnitudes are never -0, so max is enough: it keeps NaN. */
function largest(x: usize, n: i32): f32 {
  let m: f32 = 0;
  for (let i = 0; i < n; i++) {
    m = max<f32>(m, abs<f32>(load<f32>(x + (i << 2))));
  }
  return m;
}

function powers(x: usize, n: i32, power: f32): f32 {
  let sum: f32 = 0;
  for (let i = 0; i < n; i++) {
    const magnitude = abs<f32>(load<f32>(x + (i << 2)));
    sum += power == 1 ? magnitude : Mathf.pow(magnitude, power);
  }
  return sum;
}
