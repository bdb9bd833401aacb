// Filling a view with a value, and converting a view to another dtype. Both work on bits, because
// drivers may flush subnormals and may assume that there are no NaNs or infinities.

import { byteSize, type DType, f32ToBf16, f32ToF16 } from '@shardweave/dtypes';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel, elementsPerWord, type Kernel } from '../../kernel/kernel.js';
import { F16_UNPACK_EXACT } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRange } from '../../queue/row-blocks.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';

export function fill(ctx: KernelContext, { out, value }: KernelCalls['fill']): void {
  const compiled = ctx.kernel('fill', () =>
    defineKernel({
      label: 'fill',
      bindings: [{ name: 'out', type: 'raw', access: 'read_write' }],
      params: { word: 'u32', last_mask: 'u32', words: 'u32', per_lane: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: elementwiseMain(`let w = P.out_at + u;
      if (u + 1u < P.words) { out[w] = P.word; }
      else { out[w] = (out[w] & ~P.last_mask) | (P.word & P.last_mask); }`),
    }),
  );
  const word = wordOf(value, out.dtype);
  const asWords: View = { ...out, dtype: 'u32', size: wordsOf(out) };
  // The other half of the last word may belong to a neighboring tensor, and keeps its element.
  const isOdd = elementsPerWord(out.dtype) === 2 && out.size % 2 === 1;
  eachRange(ctx, [asWords], 'fill', (views, start, length) => {
    const { grid, perLane } = elementwiseGrid(ctx, length);
    const isLast = start + length === asWords.size;
    const lastMask = isOdd && isLast ? 0xffff : 0xffffffff;
    ctx.dispatch(compiled, {
      params: { word, last_mask: lastMask, words: length, per_lane: perLane },
      views,
      grid,
    });
  });
}

export function cast(ctx: KernelContext, { x, out }: KernelCalls['cast']): void {
  const key = `cast ${x.dtype} to ${out.dtype}`;
  const compiled = ctx.kernel(key, () => castKernel(key, x.dtype, out.dtype));
  eachRange(ctx, [x, out], 'cast', (views, _, length) => {
    const words = Math.ceil(length / elementsPerWord(out.dtype));
    const { grid, perLane } = elementwiseGrid(ctx, words);
    ctx.dispatch(compiled, {
      params: { size: length, words, per_lane: perLane },
      views,
      grid,
    });
  });
}

/** Runs `body` with `out`, or where `out` is 16-bit with an f32 view that is cast to it after. */
export function through32(ctx: KernelContext, out: View, body: (out: View) => void): void {
  if (elementsPerWord(out.dtype) === 1) {
    body(out);
    return;
  }
  ctx.withScratch('f32', out.size, (wide) => {
    body(wide);
    cast(ctx, { x: wide, out });
  });
}

function castKernel(label: string, from: DType, to: DType): Kernel {
  const perWord = elementsPerWord(to);
  const store =
    perWord === 2
      ? `let w = (P.out_at >> 1u) + u;
      // A neighbor's element in the last word's other half stays.
      let high = select(convert(2u * u + 1u) << 16u, out[w] & 0xffff0000u, 2u * u + 1u == P.size);
      out[w] = convert(2u * u) | high;`
      : 'out[P.out_at + u] = convert(u);';
  return defineKernel({
    label,
    bindings: [
      { name: 'x', type: from === 'f16' || from === 'bf16' ? from : 'raw', access: 'read' },
      { name: 'out', type: 'raw', access: 'read_write' },
    ],
    params: { size: 'u32', words: 'u32', per_lane: 'u32' },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${F16_UNPACK_EXACT}
${CONVERSIONS}
fn bits_of(i: u32) -> u32 { let e = P.x_at + i; ${readBits(from)} }
fn convert(i: u32) -> u32 { let u = bits_of(i); return ${convertBits(from, to)}; }
${elementwiseMain(store)}`,
  });
}

/**
 * Returns WGSL that reads element e: the f32 bits of a 16-bit float, or another dtype's own bits.
 */
function readBits(from: DType): string {
  switch (from) {
    case 'f16':
      return 'return f16_unpack_exact(x[e >> 1u], e & 1u);';
    case 'bf16':
      return 'return (x[e >> 1u] >> ((e & 1u) << 4u)) << 16u;';
    default:
      return 'return x[e];';
  }
}

function convertBits(from: DType, to: DType): string {
  const isInteger = from === 'i32' || from === 'u32';
  if (to === 'i32' || to === 'u32') {
    return isInteger ? 'u' : `to_${to}(u)`;
  }
  const float = isInteger ? `from_${from}(u)` : 'u';
  if (to === 'f32') {
    return float;
  }
  return to === 'f16' ? `f16_bits(bitcast<f32>(${float}))` : `bf16_of_bits(${float})`;
}

/**
 * WGSL functions that convert between the bits of dtypes. Conversions to integers saturate here,
 * since WGSL did not define the result for a long time. Integers beyond 2^24 are rounded to f32 by
 * the driver.
 */
const CONVERSIONS = `
fn bf16_of_bits(u: u32) -> u32 {
  let r = (u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u;
  return select(r, (u >> 16u) | 0x40u, (u & 0x7fffffffu) > 0x7f800000u);
}
fn from_u32(u: u32) -> u32 { return bitcast<u32>(f32(u)); }
fn from_i32(u: u32) -> u32 { return bitcast<u32>(f32(bitcast<i32>(u))); }
fn to_i32(u: u32) -> u32 {
  let v = bitcast<f32>(u);
  let magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u || magnitude < 0x3f800000u) { return 0u; }
  if (magnitude >= 0x4f000000u) { return select(0x7fffffffu, 0x80000000u, u > 0x7fffffffu); }
  return bitcast<u32>(i32(v));
}
fn to_u32(u: u32) -> u32 {
  let v = bitcast<f32>(u);
  if (u > 0x7f800000u || u < 0x3f800000u) { return 0u; }
  if (u >= 0x4f800000u) { return 0xffffffffu; }
  return u32(v);
}
`;

/** Returns a 32-bit word filled with `value` in `dtype`: one element, or two of 16 bits. */
function wordOf(value: number, dtype: DType): number {
  switch (dtype) {
    case 'f32':
      return new Uint32Array(new Float32Array([value]).buffer)[0]!;
    case 'f16':
      return (f32ToF16(Math.fround(value)) * 0x10001) >>> 0;
    case 'bf16':
      return (f32ToBf16(Math.fround(value)) * 0x10001) >>> 0;
    case 'i32':
      return saturate(value, -(2 ** 31), 2 ** 31 - 1) >>> 0;
    case 'u32':
      return saturate(value, 0, 2 ** 32 - 1);
  }
}

function saturate(value: number, min: number, max: number): number {
  return Number.isNaN(value) ? 0 : Math.min(max, Math.max(min, Math.trunc(value)));
}

function wordsOf(view: View): number {
  return Math.ceil((view.size * byteSize(view.dtype)) / 4);
}
