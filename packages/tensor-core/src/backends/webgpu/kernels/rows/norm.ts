// Norms of gradients, which are sums over blocks that a fixed binary tree joins, and the factor
// that clips gradients. A workgroup takes a node or a span. A block's sum must have the same bits
// wherever in its node the block lies, because spans and shards begin anywhere.

import { byteSize } from '@shardweave/dtypes';
import { LimitError } from '../../../../errors.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import {
  NORM_BLOCK_ELEMENTS,
  NORM_NODE_ELEMENTS,
  type Span,
} from '../../../../kernel-calls/norm.js';
import { numNormNodes, spanWords } from '../../../../norm-spans.js';
import type { View } from '../../../../view.js';
import { defineKernel, linearGrid } from '../../kernel/kernel.js';
import { mainHead } from '../../kernel/wgsl.js';
import { type KernelContext, sliceView } from '../../queue/context.js';

/** The blocks of a node, and the lanes of the workgroup that joins them. */
const NODE_BLOCKS = NORM_NODE_ELEMENTS / NORM_BLOCK_ELEMENTS;
/**
 * The lanes that share a block. Each takes every 32nd element, so that neighboring lanes read
 * neighboring elements.
 */
const BLOCK_LANES = 32;
/** The blocks that a workgroup reads before it adds their parts up. */
const ROUND_BLOCKS = 64;

export function normNodes(ctx: KernelContext, call: KernelCalls['normNodes']): void {
  const { x, out, spans, power } = call;
  const kind = power === 2 ? 'square' : power === Infinity ? 'max' : 'power';
  const key = `normNodes ${kind} ${x.dtype}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        { name: 'spans', type: 'raw', access: 'read' },
        { name: 'out', type: 'f32', access: 'read_write' },
      ],
      params: {
        num_spans: 'u32',
        length: 'u32',
        first_node: 'u32',
        num_nodes: 'u32',
        window_start: 'u32',
        power: 'f32',
      },
      workgroupSize: [NODE_BLOCKS, 1, 1],
      body: `${blockHelpers(kind)}
${nodeOfGroup()}`,
    }),
  );
  withSpans(ctx, { spans, x }, (table) => {
    for (const window of windowsOf(ctx, x, spans)) {
      ctx.dispatch(compiled, {
        params: {
          num_spans: spans.length,
          length: spans[0]!.length,
          first_node: window.firstNode,
          num_nodes: window.numNodes,
          window_start: window.start,
          power: kind === 'power' ? power : 0,
        },
        views: [sliceView(x, window.start, window.end - window.start), table, out],
        grid: linearGrid(window.numNodes),
      });
    }
  });
}

export function normTree(ctx: KernelContext, call: KernelCalls['normTree']): void {
  const { x, out, spans, isMax } = call;
  const key = `normTree ${isMax ? 'max' : 'sum'}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'x', type: 'f32', access: 'read' },
        { name: 'spans', type: 'raw', access: 'read' },
        { name: 'out', type: 'f32', access: 'read_write' },
      ],
      params: { num_spans: 'u32', length: 'u32', start: 'u32' },
      workgroupSize: [NODE_BLOCKS, 1, 1],
      body: `${treeHelpers(isMax)}
${treeOfGroup()}`,
    }),
  );
  withSpans(ctx, { spans, x }, (table) => {
    const [{ start, length }] = spans as [Span];
    ctx.dispatch(compiled, {
      params: { num_spans: spans.length, length, start },
      views: [x, table, out],
      grid: linearGrid(spans.length),
    });
  });
}

/**
 * Calls `body` with a table of the spans. A single span is passed in parameters, and the first
 * elements of x are bound in place of a table that nothing reads.
 */
function withSpans(
  ctx: KernelContext,
  { spans, x }: { readonly spans: readonly Span[]; readonly x: View },
  body: (table: View) => void,
): void {
  if (spans.length === 1) {
    body(sliceView(x, 0, Math.min(x.size, 4)));
    return;
  }
  const words = spanWords(spans);
  ctx.withScratch('u32', words.length, (table) => {
    ctx.upload(table, new Uint8Array(words.buffer));
    body(table);
  });
}

interface Window {
  /** The window's first element in x, and one more than its last. */
  start: number;
  end: number;
  firstNode: number;
  numNodes: number;
}

/** Returns runs of whole nodes that bind at once. */
function windowsOf(ctx: KernelContext, x: View, spans: readonly Span[]): Window[] {
  const most = ctx.windowUnits([x.dtype], 1, { op: 'normNodes' });
  const bytes = byteSize(x.dtype);
  const [first, last] = [spans[0]!, spans.at(-1)!];
  const end = last.start + last.length;
  if (end - first.start <= most) {
    return [{ start: first.start, end, firstNode: 0, numNodes: numNormNodes(spans) }];
  }
  const windows: Window[] = [];
  let node = 0;
  for (const { start, length } of spans) {
    for (let at = 0; at < length; at += NORM_NODE_ELEMENTS) {
      const from = start + at;
      const to = start + Math.min(at + NORM_NODE_ELEMENTS, length);
      const open = windows.at(-1);
      if (open !== undefined && to - open.start <= most) {
        open.end = to;
        open.numNodes += 1;
      } else if (to - from <= most) {
        windows.push({ start: from, end: to, firstNode: node, numNodes: 1 });
      } else {
        throw new LimitError(
          `normNodes: expected nodes of at most ${most} elements, got ${to - from}. The device binds no more at once.`,
          { requestedBytes: (to - from) * bytes, limitBytes: most * bytes },
        );
      }
      node += 1;
    }
  }
  return windows;
}

function joinText(isMax: boolean): string {
  return `fn join(a: f32, b: f32) -> f32 { return ${isMax ? 'larger(a, b)' : 'a + b'}; }`;
}

function blockHelpers(kind: 'square' | 'power' | 'max'): string {
  const add = {
    square: 'return fma(v, v, r);',
    // Drivers differ about pow of 0, of infinity and of NaN.
    power: `let a = abs(v);
  if (P.power == 1.0 || a == 0.0 || (bitcast<u32>(a) >= 0x7f800000u)) { return r + a; }
  return r + pow(a, P.power);`,
    max: 'return larger(r, abs(v));',
  }[kind];
  return `${joinText(kind === 'max')}
// A block's value and one more element.
fn add(r: f32, v: f32) -> f32 { ${add} }
// Drivers may flush what is below the normal numbers in later sums, so it goes here. By bits: NaN
// stays.
fn flushed(r: f32) -> f32 { return select(r, 0.0, bitcast<u32>(r) < 0x00800000u); }
// Start in the window and length of a node.
fn place_of(node: u32) -> vec2<u32> {
  var start = 0u;
  var length = P.length;
  var first = 0u;
  if (P.num_spans > 1u) {
    // The last span whose first node is not behind this one.
    var low = 0u;
    var high = P.num_spans;
    while (high - low > 1u) {
      let middle = (low + high) >> 1u;
      if (load_spans(3u * middle + 2u) <= node) { low = middle; } else { high = middle; }
    }
    start = load_spans(3u * low) - P.window_start;
    length = load_spans(3u * low + 1u);
    first = load_spans(3u * low + 2u);
  } else {
    start = 0u - P.first_node * ${NORM_NODE_ELEMENTS}u;
  }
  let skipped = (node - first) * ${NORM_NODE_ELEMENTS}u;
  return vec2<u32>(start + skipped, min(length - skipped, ${NORM_NODE_ELEMENTS}u));
}`;
}

function nodeOfGroup(): string {
  const size = NODE_BLOCKS;
  const perRound = size / BLOCK_LANES;
  return `
// Rows are one longer than the lanes, so that lanes which add rows read different banks.
var<workgroup> parts: array<f32, ${ROUND_BLOCKS * (BLOCK_LANES + 1)}>;
var<workgroup> blocks: array<f32, ${size}>;
${mainHead([size, 1, 1])}
  if (group >= P.num_nodes) { return; }
  let node = P.first_node + group;
  let place = place_of(node);
  blocks[lane] = 0.0;
  let slot = lane / ${BLOCK_LANES}u;
  let me = lane % ${BLOCK_LANES}u;
  let rounds = (place.y + ${ROUND_BLOCKS * NORM_BLOCK_ELEMENTS - 1}u) / ${ROUND_BLOCKS * NORM_BLOCK_ELEMENTS}u;
  for (var round = 0u; round < rounds; round++) {
    for (var k = 0u; k < ${ROUND_BLOCKS}u; k += ${perRound}u) {
      let at = (round * ${ROUND_BLOCKS}u + k + slot) * ${NORM_BLOCK_ELEMENTS}u;
      var r = 0.0;
      for (var j = me; j < ${NORM_BLOCK_ELEMENTS}u; j += ${BLOCK_LANES}u) {
        if (at + j < place.y) { r = add(r, load_x(place.x + at + j)); }
      }
      parts[(k + slot) * ${BLOCK_LANES + 1}u + me] = r;
    }
    workgroupBarrier();
    if (lane < ${ROUND_BLOCKS}u) {
      var r = 0.0;
      for (var k = 0u; k < ${BLOCK_LANES}u; k++) { r = join(r, parts[lane * ${BLOCK_LANES + 1}u + k]); }
      blocks[round * ${ROUND_BLOCKS}u + lane] = flushed(r);
    }
    workgroupBarrier();
  }
  for (var s = 1u; s < ${size}u; s <<= 1u) {
    if (lane % (2u * s) == 0u) { blocks[lane] = join(blocks[lane], blocks[lane + s]); }
    workgroupBarrier();
  }
  if (lane == 0u) { store_out(node, blocks[0]); }
}`;
}

/**
 * WGSL that joins leaves into a tree as they come. The stack holds one finished subtree for each
 * set bit of the number of leaves so far: after 6 leaves (0b110), one of 4 and one of 2.
 */
const STACK = `
var<private> stack: array<f32, 32>;
fn push(i: u32, leaf: f32) {
  var value = leaf;
  var level = 0u;
  for (var left = i; (left & 1u) != 0u; left >>= 1u) {
    value = join(stack[level], value);
    level++;
  }
  stack[level] = value;
}
// What has no neighbor on the right goes up as it is.
fn top(count: u32) -> f32 {
  if (count == 0u) { return 0.0; }
  var level = countTrailingZeros(count);
  var value = stack[level];
  for (level++; level < 32u; level++) {
    if (((count >> level) & 1u) != 0u) { value = join(stack[level], value); }
  }
  return value;
}`;

function treeHelpers(isMax: boolean): string {
  return `${joinText(isMax)}
fn place_of(span: u32) -> vec2<u32> {
  if (P.num_spans == 1u) { return vec2<u32>(P.start, P.length); }
  return vec2<u32>(load_spans(3u * span), load_spans(3u * span + 1u));
}
${STACK}`;
}

function treeOfGroup(): string {
  const size = NODE_BLOCKS;
  return `var<workgroup> leaves: array<f32, ${size}>;
${mainHead([size, 1, 1])}
  if (group >= P.num_spans) { return; }
  let place = place_of(group);
  let chunks = (place.y + ${size - 1}u) / ${size}u;
  for (var chunk = 0u; chunk < chunks; chunk++) {
    let i = chunk * ${size}u + lane;
    var leaf = 0.0;
    if (i < place.y) { leaf = load_x(place.x + i); }
    leaves[lane] = leaf;
    workgroupBarrier();
    for (var s = 1u; s < ${size}u; s <<= 1u) {
      if (lane % (2u * s) == 0u) { leaves[lane] = join(leaves[lane], leaves[lane + s]); }
      workgroupBarrier();
    }
    if (lane == 0u) { push(chunk, leaves[0]); }
    workgroupBarrier();
  }
  if (lane == 0u) { store_out(group, top(chunks)); }
}`;
}

export function clipFactor(ctx: KernelContext, call: KernelCalls['clipFactor']): void {
  const { squares, norm, scale, maxNorm, unscale } = call;
  const compiled = ctx.kernel('clipFactor', () =>
    defineKernel({
      label: 'clipFactor',
      bindings: [
        { name: 'squares', type: 'f32', access: 'read' },
        { name: 'norm', type: 'f32', access: 'read_write' },
        { name: 'scale', type: 'f32', access: 'read_write' },
      ],
      params: { max_norm: 'f32', is_bounded: 'u32', unscale: 'f32', zero: 'u32' },
      workgroupSize: [1, 1, 1],
      body: CLIP_FACTOR,
    }),
  );
  const isBounded = maxNorm !== Infinity;
  ctx.dispatch(compiled, {
    params: {
      max_norm: isBounded ? maxNorm : 1,
      is_bounded: isBounded ? 1 : 0,
      unscale,
      zero: 0,
    },
    views: [squares, norm, scale],
    grid: [1, 1, 1],
  });
}

/**
 * WGSL that computes root and quotient digit by digit in integers, since drivers may be off by some
 * units in both. The 25th digit decides how to round; neither a root nor a quotient of two f32 can
 * lie halfway between two f32.
 */
const CLIP_FACTOR = `
const NORMAL = 0x00800000u;
const INFINITE = 0x7f800000u;
// x is not negative.
fn exact_sqrt(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (bits >= INFINITE) { return x; }
  if (bits < NORMAL) { return 0.0; }
  let exponent = i32(bits >> 23u) - 127;
  var rest = ((bits & 0x7fffffu) | NORMAL) << (7u + u32(exponent & 1));
  var root = 0u;
  var left = 0u;
  for (var digit = 0u; digit < 25u; digit++) {
    left = (left << 2u) | (rest >> 30u);
    rest <<= 2u;
    let trial = (root << 2u) | 1u;
    root <<= 1u;
    if (left >= trial) { left -= trial; root |= 1u; }
  }
  return bitcast<f32>((u32((exponent >> 1u) + 126) << 23u) + (root >> 1u) + (root & 1u));
}
// min(1, a / b) of a positive finite a and a positive b.
fn exact_ratio(a: f32, b: f32) -> f32 {
  let b_bits = bitcast<u32>(b);
  if (b_bits > INFINITE) { return b; }
  let a_bits = bitcast<u32>(a);
  if (a_bits >= b_bits) { return 1.0; }
  if (a_bits < NORMAL || b_bits == INFINITE) { return 0.0; }
  var left = (a_bits & 0x7fffffu) | NORMAL;
  let divisor = (b_bits & 0x7fffffu) | NORMAL;
  var exponent = i32(a_bits >> 23u) - i32(b_bits >> 23u);
  if (left < divisor) { left <<= 1u; exponent -= 1; }
  if (exponent < -126) { return 0.0; }
  var ratio = 0u;
  for (var digit = 0u; digit < 25u; digit++) {
    ratio <<= 1u;
    if (left >= divisor) { left -= divisor; ratio |= 1u; }
    left <<= 1u;
  }
  return bitcast<f32>((u32(exponent + 126) << 23u) + (ratio >> 1u) + (ratio & 1u));
}
${mainHead([1, 1, 1])}
  let n = exact_sqrt(load_squares(0u)) * P.unscale;
  store_norm(0u, n);
  var factor = 1.0;
  // A driver may fuse the product above with the sum, unless the value passes through bits.
  let apart = bitcast<f32>(bitcast<u32>(n) ^ P.zero);
  if (P.is_bounded == 1u) { factor = exact_ratio(P.max_norm, apart + 1e-6); }
  store_scale(0u, factor * P.unscale);
}`;
