// Strided copies, which make transposes, slices, concatenations and expansions. They copy bits, and
// move 8 bytes for a 32-bit element and 4 for a 16-bit one.

import { LimitError } from '../../../../errors.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel, elementsPerWord, type Kernel } from '../../kernel/kernel.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';
import { collapse, stridedIndex, strideParams } from './strided.js';

export function copyStrided(ctx: KernelContext, call: KernelCalls['copyStrided']): void {
  const { x, out, shape, xOffset, xStrides, outOffset, outStrides } = call;
  const walk = collapse(shape, [xStrides, outStrides]);
  copyBlocks(ctx, {
    shape: walk.shape,
    x: { view: x, offset: xOffset, strides: walk.strides[0]! },
    out: { view: out, offset: outOffset, strides: walk.strides[1]! },
  });
}

interface Side {
  readonly view: View;
  readonly offset: number;
  readonly strides: readonly number[];
}

interface CopyBlock {
  readonly shape: readonly number[];
  readonly x: Side;
  readonly out: Side;
}

/**
 * Copies a block, or halves it until both sides bind, each time along the axis that spans most of
 * the side that does not. In a transpose halving one axis shortens what is read, and halving the
 * other what is written.
 */
function copyBlocks(ctx: KernelContext, block: CopyBlock): void {
  const { shape, x, out } = block;
  const spanOf = ({ strides }: Side) =>
    strides.reduce((span, stride, axis) => span + stride * (shape[axis]! - 1), 1);
  const beyond = [x, out].find(
    (side) =>
      side.view.size > ctx.windowElements(side.view.dtype) &&
      spanOf(side) > ctx.windowElements(side.view.dtype),
  );
  if (beyond === undefined) {
    const bound = (side: Side): Side =>
      side.view.size <= ctx.windowElements(side.view.dtype)
        ? side
        : { ...side, view: sliceView(side.view, side.offset, spanOf(side)), offset: 0 };
    dispatchCopy(ctx, { shape, x: bound(x), out: bound(out) });
    return;
  }
  const reaches = beyond.strides.map((stride, axis) => stride * (shape[axis]! - 1));
  const axis = reaches.indexOf(Math.max(...reaches));
  const half = halfOf(block, axis);
  for (const [first, count] of [
    [0, half],
    [half, shape[axis]! - half],
  ] as const) {
    const cut = (side: Side): Side => ({
      ...side,
      offset: side.offset + first * side.strides[axis]!,
    });
    const part = shape.map((extent, i) => (i === axis ? count : extent));
    copyBlocks(ctx, { shape: part, x: cut(x), out: cut(out) });
  }
}

/**
 * Returns about half of an axis. 16-bit outputs are stored as pairs of neighbors. Where rows have
 * odd lengths, pairs reach over the ends of rows, so only the first axis may be cut, and only at a
 * whole word.
 */
function halfOf({ shape, out }: CopyBlock, axis: number): number {
  const half = Math.ceil(shape[axis]! / 2);
  if (elementsPerWord(out.view.dtype) === 1) {
    return half;
  }
  const isLast = axis === shape.length - 1;
  const areRowsWhole = shape.at(-1)! % 2 === 0;
  const wanted = isLast || !areRowsWhole ? half + (half % 2) : half;
  const isFirst = shape.findIndex((extent) => extent > 1) === axis;
  if (wanted >= shape[axis]! || !(areRowsWhole || isFirst)) {
    throw new LimitError(
      `copyStrided: expected 16-bit rows of an even length where they are cut, got [${shape.join(', ')}]. Cast to f32 first.`,
    );
  }
  return wanted;
}

function dispatchCopy(ctx: KernelContext, { shape, x, out }: CopyBlock): void {
  const walk = { shape, strides: [x.strides, out.strides] };
  const rank = shape.length;
  const perWord = elementsPerWord(out.view.dtype);
  const size = shape.reduce((product, extent) => product * extent, 1);
  const words = Math.ceil(size / perWord);
  const { grid, perLane } = elementwiseGrid(ctx, words);
  const key = `copyStrided ${perWord === 2 ? 16 : 32} rank ${rank}`;
  ctx.dispatch(
    ctx.kernel(key, () => copyKernel(key, rank, perWord)),
    {
      params: {
        ...strideParams(walk, ['x', 'out']),
        x_start: x.offset,
        out_start: out.offset,
        size,
        words,
        per_lane: perLane,
      },
      views: [x.view, out.view],
      grid,
    },
  );
}

function copyKernel(label: string, rank: number, perWord: 1 | 2): Kernel {
  const names = ['x', 'out'];
  const strides = Object.keys(
    strideParams({ shape: Array(rank).fill(1), strides: [[], []] }, names),
  );
  const word =
    perWord === 1
      ? 'let at = strided(u); out[P.out_at + P.out_start + at.out] = x[P.x_at + P.x_start + at.x];'
      : `let low = strided(2u * u);
      let w = (P.out_at + P.out_start + low.out) >> 1u;
      var high = out[w] & 0xffff0000u;
      if (2u * u + 1u < P.size) { high = half(strided(2u * u + 1u).x) << 16u; }
      out[w] = half(low.x) | high;`;
  return defineKernel({
    label,
    bindings: [
      { name: 'x', type: 'raw', access: 'read' },
      { name: 'out', type: 'raw', access: 'read_write' },
    ],
    params: {
      ...Object.fromEntries(strides.map((name) => [name, 'u32' as const])),
      x_start: 'u32',
      out_start: 'u32',
      size: 'u32',
      words: 'u32',
      per_lane: 'u32',
    },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${INTEGER_DIVIDE}
${stridedIndex(rank, names)}
fn half(i: u32) -> u32 {
  let e = P.x_at + P.x_start + i;
  return (x[e >> 1u] >> ((e & 1u) << 4u)) & 0xffffu;
}
${elementwiseMain(word)}`,
  });
}
