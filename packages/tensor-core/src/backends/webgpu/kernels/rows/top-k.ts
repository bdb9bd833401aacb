// The largest elements along the middle axis of [outer, dim, inner]. Lines that do not bind are
// searched in parts, each together with what was found in the parts before it.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { copyStrided } from '../elementwise/copy.js';
import { runRows } from './rows.js';

/**
 * WGSL that maps an f32 to a word of the same order. NaN is above all numbers, and zeros of both
 * signs are equal. No element has the word 0, which stands for none.
 */
const KEYS = `
fn key_of(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0xffffffffu; }
  if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
  return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}
struct Best { key: u32, at: u32 }
fn better(a: Best, b: Best) -> Best {
  if (b.key > a.key || (b.key == a.key && b.at < a.at)) { return b; }
  return a;
}`;

/** The lines of one dispatch. */
interface TopKLines {
  /** [outer, dim, inner] */
  readonly x: View;
  readonly outer: number;
  readonly dim: number;
  readonly inner: number;
  readonly count: number;
}

export function topK(ctx: KernelContext, call: KernelCalls['topK']): void {
  const { x, out, outer, dim, inner, count } = call;
  const strides = [dim * inner, count * inner];
  const lines = { dim, inner, count };
  const cutRow = ([xLine, outLine]: readonly View[]) =>
    topKByParts(ctx, { ...lines, x: xLine!, outer: 1 }, outLine!);
  const blocks = { strides, rows: outer, op: 'topK', cutRow };
  eachRowBlock(ctx, [x, out], blocks, ([xPart, outPart], _, numOuter) =>
    largestOf(ctx, { ...lines, x: xPart!, outer: numOuter }, { out: outPart! }),
  );
}

/**
 * Searches parts of lines in order. Each part starts from the keys and indices that were found in
 * the parts before it.
 */
function topKByParts(ctx: KernelContext, call: TopKLines, out: View): void {
  const { x, dim, inner, count } = call;
  const size = count * inner;
  ctx.windowUnits(['u32'], 2 * size, { op: 'topK' });
  ctx.withScratch('u32', 4 * size, (scratch) => {
    let [before, after] = [0, 2 * size].map((at) => sliceView(scratch, at, 2 * size)) as [
      View,
      View,
    ];
    const blocks = { strides: [inner], rows: dim, op: 'topK', areWritten: [false] };
    eachRowBlock(ctx, [x], blocks, ([part], first, numRows) => {
      const found = { before, after, first };
      largestOf(ctx, { ...call, x: part!, dim: numRows }, found);
      [before, after] = [after, before];
    });
    const walk = { shape: [size], xStrides: [1], outStrides: [1] };
    const indices = sliceView(before, size, size);
    copyStrided(ctx, {
      ...walk,
      x: { ...indices, dtype: out.dtype },
      xOffset: 0,
      out,
      outOffset: 0,
    });
  });
}

/**
 * What a search by parts reads and writes: [2, count, inner] of u32, keys and then indices. For the
 * first part of a line nothing reads `before`.
 */
interface FoundByParts {
  readonly before: View;
  readonly after: View;
  /** Where this part of the line begins. */
  readonly first: number;
}

/** Finds the largest elements one by one: each is the best that comes after the one found last. */
function largestOf(
  ctx: KernelContext,
  { x, outer, dim, inner, count }: TopKLines,
  to: { readonly out: View } | FoundByParts,
): void {
  const isWhole = 'out' in to;
  runRows(ctx, {
    key: `topK ${x.dtype}${isWhole ? '' : ' of a part'}`,
    rows: outer * inner,
    cols: dim,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      ...(isWhole ? [] : [{ name: 'before', type: 'raw', access: 'read' } as const]),
      { name: 'out', type: 'raw', access: 'read_write' },
    ],
    params: { inner: 'u32', count: 'u32', first: 'u32', num_before: 'u32' },
    helpers: `${INTEGER_DIVIDE}${KEYS}
var<workgroup> bests: array<Best, LANES>;
fn best_of(own: Best, me: u32) -> Best {
  bests[me] = own;
  workgroupBarrier();
  for (var s = LANES / 2u; s > 0u; s >>= 1u) {
    if (me < s) { bests[me] = better(bests[me], bests[me + s]); }
    workgroupBarrier();
  }
  let r = bests[0];
  workgroupBarrier();
  return r;
}
fn behind(last: Best, n: u32, key: u32, at: u32) -> bool {
  return n == 0u || key < last.key || (key == last.key && at > last.at);
}`,
    body: `
  let o = divide(row, P.inner);
  let i = row - o * P.inner;
  var last = Best(0xffffffffu, 0xffffffffu);
  for (var n = 0u; n < P.count; n++) {
    var best = Best(0u, 0xffffffffu);
    ${
      isWhole
        ? ''
        : `for (var b = me; b < P.num_before; b += LANES) {
      let found = Best(load_before(b * P.inner + i), load_before((P.count + b) * P.inner + i));
      if (behind(last, n, found.key, found.at)) { best = better(best, found); }
    }`
    }
    for (var d = me; d < P.cols; d += LANES) {
      let key = key_of(load_x((o * P.cols + d) * P.inner + i));
      if (behind(last, n, key, P.first + d) && key > best.key) { best = Best(key, P.first + d); }
    }
    last = best_of(best, me);
    if (me == 0u) {
      let to = (o * P.count + n) * P.inner + i;
      ${isWhole ? 'store_out(to, last.at);' : 'store_out(to, last.key); store_out(to + P.count * P.inner, last.at);'}
    }
  }`,
    values: {
      inner,
      count,
      first: isWhole ? 0 : to.first,
      num_before: isWhole || to.first === 0 ? 0 : count,
    },
    views: isWhole ? [x, to.out] : [x, to.before, to.after],
  });
}
