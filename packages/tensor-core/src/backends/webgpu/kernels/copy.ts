// Strided copies of bits: transposes, slices, concatenation, expansion. 8 bytes moved per 32-bit
// element, 4 per 16-bit one.

import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { KernelContext } from '../context.js';
import { defineKernel, elementsPerWord, type Kernel } from '../kernel.js';
import { INTEGER_DIVIDE } from '../wgsl.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';
import { collapse, stridedIndex, strideParams } from './strided.js';

export function copyStrided(ctx: KernelContext, call: KernelCalls['copyStrided']): void {
  const { x, out, shape, xOffset, xStrides, outOffset, outStrides } = call;
  const walk = collapse(shape, [xStrides, outStrides]);
  const rank = walk.shape.length;
  const perWord = elementsPerWord(out.dtype);
  const size = shape.reduce((product, extent) => product * extent, 1);
  const words = Math.ceil(size / perWord);
  const { grid, perLane } = elementwiseGrid(ctx, words);
  const key = `copyStrided ${perWord === 2 ? 16 : 32} rank ${rank}`;
  ctx.dispatch(
    ctx.kernel(key, () => copyKernel(key, rank, perWord)),
    {
      params: {
        ...strideParams(walk, ['x', 'out']),
        x_start: xOffset,
        out_start: outOffset,
        size,
        words,
        per_lane: perLane,
      },
      views: [x, out],
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
