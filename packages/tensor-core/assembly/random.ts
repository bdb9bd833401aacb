// Random numbers from Philox4x32-10 and a recipe of integers (src/random-recipe.ts), whose only operation
// on floats is the last one, a product. Integers have at most 24 bits, so that converting them is exact.

import { narrow } from './convert';
import { philox16 } from './dropout';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK, RANDOM_NORMAL } from './layout';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

/** args: kind, out, dtype, size, key0, key1, offset low, offset high, scale, first, range, table or 0. */
export function random(slot: usize, chunk: u32, chunks: u32): void {
  const isNormal = argI(slot, 0) == RANDOM_NORMAL;
  const out = <usize>arg(slot, 1);
  const outType = argI(slot, 2);
  const size = arg(slot, 3);
  const key0 = arg(slot, 4);
  const key1 = arg(slot, 5);
  const offset = (<u64>arg(slot, 7) << 32) | <u64>arg(slot, 6);
  const scale = f32x4.splat(argF(slot, 8));
  const words = scratchBase;
  // Random words of a block, from the multiple of four below it.
  const results = words + BLOCK_BYTES + 64;
  const end = chunkStart(size, chunk + 1, chunks, 64);
  for (let at = chunkStart(size, chunk, chunks, 64); at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    const from = offset + <u64>at;
    const lead = <i32>(from & 3);
    for (let i = 0; i < n + lead; i += 16) {
      philox16((from >> 2) + <u64>(i >> 2), key0, key1, words + (i << 2));
    }
    const drawn = words + (lead << 2);
    if (isNormal) {
      normals(drawn, n, arg(slot, 9), arg(slot, 10), <usize>arg(slot, 11));
    } else {
      uniforms(drawn, n);
    }
    for (let i = 0; i < n; i += 4) {
      const o = i << 2;
      v128.store(results + o, f32x4.mul(f32x4.convert_i32x4_s(v128.load(drawn + o)), scale));
    }
    narrow(results, out, outType, at, n);
  }
}

/** Odd integers within 2^24 of 0, in place of words. */
function uniforms(words: usize, n: i32): void {
  for (let i = 0; i < n; i += 4) {
    const o = i << 2;
    const half = i32x4.shr_u(v128.load(words + o), 8);
    v128.store(words + o, i32x4.add(i32x4.add(half, half), i32x4.splat(1 - 0x1000000)));
  }
}

/** Normal integers, in place of words. */
function normals(words: usize, n: i32, first: u32, range: u32, table: usize): void {
  for (let i = 0; i < n; i++) {
    const o = words + (i << 2);
    const word = load<u32>(o);
    const place = range == 0 ? word : first + highWord(word, range);
    const isUpper = place >= 0x80000000;
    const tail = ((isUpper ? ~place : place) << 1) | 1;
    const octave = clz<u32>(tail);
    const part = (tail << octave) << 1;
    const at = table + <usize>((octave * 32 + (part >> 27)) * 12);
    const t = part << 5;
    const inner = load<u32>(at, 4) - highWord(t, load<u32>(at, 8));
    const distance = <i32>((load<u32>(at) - highWord(t, inner) + 128) >> 8);
    store<i32>(o, isUpper ? distance : -distance);
  }
}

@inline
function highWord(a: u32, b: u32): u32 {
  return <u32>((<u64>a * <u64>b) >> 32);
}
