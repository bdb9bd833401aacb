// Dropout by the counter-based generator Philox4x32-10 (Salmon et al., 2011, "Parallel random
// numbers: as easy as 1, 2, 3"). WGSL has no 64-bit product, so high words are computed from 16-bit
// halves.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel, elementsPerWord, type Kernel } from '../../kernel/kernel.js';
import { isSameView, type KernelContext } from '../../queue/context.js';
import { eachRange } from '../../queue/row-blocks.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';

/** The words that one evaluation of the generator makes. */
const BLOCK = 4;

/** WGSL `philox(low, high)`: the four words of a counter under the key P.key0 and P.key1. */
export const PHILOX_WORDS = `
fn high_product(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu; let ah = a >> 16u;
  let bl = b & 0xffffu; let bh = b >> 16u;
  let low = al * bl;
  let mid = ah * bl + (low >> 16u);
  let mid2 = al * bh + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (mid2 >> 16u);
}
fn philox(low: u32, high: u32) -> vec4<u32> {
  var c = vec4<u32>(low, high, 0u, 0u);
  var k = vec2<u32>(P.key0, P.key1);
  for (var round = 0u; round < 10u; round++) {
    let h0 = high_product(0xd2511f53u, c.x);
    let h1 = high_product(0xcd9e8d57u, c.z);
    c = vec4<u32>(h1 ^ c.y ^ k.x, 0xcd9e8d57u * c.z, h0 ^ c.w ^ k.y, 0xd2511f53u * c.x);
    k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return c;
}
`;

/** WGSL `random_block(n)`, which takes key and counter from PHILOX_PARAMS. */
export const PHILOX = `${PHILOX_WORDS}
// The generator's block n after the call's first.
fn random_block(n: u32) -> vec4<u32> {
  let low = P.block_low + n;
  return philox(low, P.block_high + select(0u, 1u, low < n));
}
`;

export const PHILOX_PARAMS = {
  shift: 'u32',
  block_low: 'u32',
  block_high: 'u32',
  key0: 'u32',
  key1: 'u32',
} as const;

/**
 * Returns the values of PHILOX_PARAMS for a call whose first element has the number `first`.
 * `shift` is that element's place in its block of four: `first` 6 gives block 1 and shift 2.
 */
export function philoxParams(
  first: number,
  { key0, key1 }: { readonly key0: number; readonly key1: number },
) {
  const block = Math.floor(first / BLOCK);
  return {
    shift: first % BLOCK,
    block_low: block % 2 ** 32,
    block_high: Math.floor(block / 2 ** 32),
    key0,
    key1,
  };
}

export const STORE_TWO = `
fn store_two(i: u32, low: f32, high: f32) {
  if (i + 1u < P.size) { store2_out(i, low, high); } else { store1_out(i, low); }
}`;

export function dropout(ctx: KernelContext, call: KernelCalls['dropout']): void {
  const { x, out, p, key0, key1, counterOffset } = call;
  if (p >= 1) {
    throw new RangeError(`dropout: expected p below 1, got ${p}.`);
  }
  eachRange(ctx, [x, out], 'dropout', ([xPart, outPart], start, length) => {
    const philox = philoxParams(counterOffset + start, { key0, key1 });
    const isInPlace = isSameView(x, out);
    const isAligned = philox.shift === 0;
    const key = `dropout ${isInPlace ? 'in place' : x.dtype} to ${out.dtype} ${isAligned ? 'blocks' : 'elements'}`;
    const compiled = ctx.kernel(key, () => dropoutKernel(key, { x, out, isInPlace, isAligned }));
    const perWord = isAligned ? BLOCK : elementsPerWord(out.dtype);
    const words = Math.ceil(length / perWord);
    const { grid, perLane } = elementwiseGrid(ctx, words);
    ctx.dispatch(compiled, {
      params: {
        ...philox,
        size: length,
        threshold: Math.floor(p * 2 ** 32),
        scale: 1 / (1 - p),
        words,
        per_lane: perLane,
      },
      views: isInPlace ? [outPart!] : [xPart!, outPart!],
      grid,
    });
  });
}

function dropoutKernel(
  label: string,
  options: { x: View; out: View; isInPlace: boolean; isAligned: boolean },
): Kernel {
  const { x, out, isInPlace, isAligned } = options;
  const is16 = elementsPerWord(out.dtype) === 2;
  const blocks = is16
    ? `let r = random_block(u); let i = ${BLOCK}u * u;
    store_two(i, kept(i, r.x), kept(i + 1u, r.y));
    if (i + 2u < P.size) { store_two(i + 2u, kept(i + 2u, r.z), kept(i + 3u, r.w)); }`
    : `let r = random_block(u); let i = ${BLOCK}u * u;
    for (var q = 0u; q < ${BLOCK}u; q++) { if (i + q < P.size) { store_out(i + q, kept(i + q, r[q])); } }`;
  const elements = is16
    ? 'let i = 2u * u; store_two(i, one(i), one(i + 1u));'
    : 'store_out(u, one(u));';
  return defineKernel({
    label,
    bindings: [
      ...(isInPlace ? [] : [{ name: 'x', type: x.dtype, access: 'read' as const }]),
      { name: 'out', type: out.dtype, access: 'read_write' },
    ],
    aliases: isInPlace ? { x: 'out' } : {},
    params: {
      ...PHILOX_PARAMS,
      size: 'u32',
      threshold: 'u32',
      scale: 'f32',
      words: 'u32',
      per_lane: 'u32',
    },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${PHILOX}
fn kept(i: u32, word: u32) -> f32 { return select(0.0, load_x(i) * P.scale, word >= P.threshold); }
${is16 ? STORE_TWO : ''}
fn one(i: u32) -> f32 { let e = P.shift + i; return kept(i, random_block(e >> 2u)[e & 3u]); }
${elementwiseMain(isAligned ? blocks : elements)}`,
  });
}
