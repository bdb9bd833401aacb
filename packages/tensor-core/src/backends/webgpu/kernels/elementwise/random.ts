// Random numbers from Philox4x32-10 and the integer arithmetic of random-recipe.ts. The only
// operation on floats is the last one, a product, which every driver rounds alike.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { normalTable } from '../../../../random-recipe.js';
import { defineKernel, elementsPerWord, type Kernel } from '../../kernel/kernel.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRange } from '../../queue/row-blocks.js';
import { MULTIPLY_HIGH } from './angles.js';
import { PHILOX, PHILOX_PARAMS, philoxParams, STORE_TWO } from './dropout.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';

const UNIFORM = `
fn integer_of(word: u32) -> i32 { return bitcast<i32>(2u * (word >> 8u) + 1u) - 0x1000000; }`;

const NORMAL = `${MULTIPLY_HIGH}
fn integer_of(word: u32) -> i32 {
  let place = select(P.first + multiply_high(word, P.range), word, P.range == 0u);
  let is_upper = place >= 0x80000000u;
  let tail = (select(place, ~place, is_upper) << 1u) | 1u;
  let octave = countLeadingZeros(tail);
  let part = (tail << octave) << 1u;
  let at = ((31u - octave) * 32u + (part >> 27u)) * 4u;
  let t = part << 5u;
  let inner = load_normals(at + 1u) - multiply_high(t, load_normals(at + 2u));
  let distance = bitcast<i32>((load_normals(at) - multiply_high(t, inner) + 128u) >> 8u);
  return select(-distance, distance, is_upper);
}`;

/**
 * Fills `out`. An invocation draws a block of four where the call's first element begins a block.
 */
export function random(ctx: KernelContext, call: KernelCalls['random']): void {
  const { kind, out, key0, key1, counterOffset, scale, first, range } = call;
  const table = normalTable();
  const normals = ctx.table(table, () => ({ words: table, ends: [] })).view;
  eachRange(ctx, [out], 'random', (parts, start, length) => {
    const philox = philoxParams(counterOffset + start, { key0, key1 });
    const isAligned = philox.shift === 0;
    const key = `random ${kind} ${out.dtype} ${isAligned ? 'blocks' : 'elements'}`;
    const compiled = ctx.kernel(key, () => randomKernel(key, call, isAligned));
    const words = Math.ceil(length / (isAligned ? 4 : elementsPerWord(out.dtype)));
    const { grid, perLane } = elementwiseGrid(ctx, words);
    ctx.dispatch(compiled, {
      params: { ...philox, scale, first, range, size: length, words, per_lane: perLane },
      views: [...(kind === 'normal' ? [normals] : []), ...parts],
      grid,
    });
  });
}

function randomKernel(label: string, call: KernelCalls['random'], isAligned: boolean): Kernel {
  const { kind, out } = call;
  const is16 = elementsPerWord(out.dtype) === 2;
  const blocks = is16
    ? `let r = random_block(u); let i = 4u * u;
    store_two(i, made(r.x), made(r.y));
    if (i + 2u < P.size) { store_two(i + 2u, made(r.z), made(r.w)); }`
    : `let r = random_block(u); let i = 4u * u;
    for (var q = 0u; q < 4u; q++) { if (i + q < P.size) { store_out(i + q, made(r[q])); } }`;
  const elements = is16
    ? 'let i = 2u * u; store_two(i, one(i), one(i + 1u));'
    : 'store_out(u, one(u));';
  return defineKernel({
    label,
    bindings: [
      ...(kind === 'normal'
        ? [{ name: 'normals', type: 'u32' as const, access: 'read' as const }]
        : []),
      { name: 'out', type: out.dtype, access: 'read_write' },
    ],
    params: {
      ...PHILOX_PARAMS,
      scale: 'f32',
      first: 'u32',
      range: 'u32',
      size: 'u32',
      words: 'u32',
      per_lane: 'u32',
    },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${PHILOX}${kind === 'normal' ? NORMAL : UNIFORM}
${is16 ? STORE_TWO : ''}
fn made(word: u32) -> f32 { return f32(integer_of(word)) * P.scale; }
fn one(i: u32) -> f32 { let e = P.shift + i; return made(random_block(e >> 2u)[e & 3u]); }
${elementwiseMain(isAligned ? blocks : elements)}`,
  });
}
