// This is dropout with random words from Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011). The mask is a function of the key and the element's number alone. Each
// lane of a vector works on a counter of its own.

import { narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK } from './layout';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

/**
 * The arguments are x, dtype, out, dtype, size, threshold, scale, key0, key1, offset low and offset
 * high.
 */
export function dropout(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 2);
  const outType = argI(slot, 3);
  const size = arg(slot, 4);
  const threshold = i32x4.splat(argI(slot, 5));
  const scale = f32x4.splat(argF(slot, 6));
  const key0 = arg(slot, 7);
  const key1 = arg(slot, 8);
  const offset = (<u64>arg(slot, 10) << 32) | <u64>arg(slot, 9);
  const words = scratchBase + BLOCK_BYTES;
  // The words of a block start at the multiple of four at or below its first element, so that they
  // need up to three more places than the block has elements.
  const results = words + BLOCK_BYTES + 64;
  const start = chunkStart(size, chunk, chunks, 64);
  const end = chunkStart(size, chunk + 1, chunks, 64);
  for (let at = start; at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    const first = offset + <u64>at;
    const lead = <i32>(first & 3);
    for (let i = 0; i < n + lead; i += 32) {
      philox32((first >> 2) + <u64>(i >> 2), key0, key1, words + (i << 2));
    }
    const mask = words + (lead << 2);
    const xv = widen(x, xType, at, n, scratchBase);
    for (let i = 0; i < n; i += 4) {
      const o = i << 2;
      const keep = i32x4.ge_u(v128.load(mask + o), threshold);
      v128.store(results + o, v128.and(keep, f32x4.mul(v128.load(xv + o), scale)));
    }
    narrow(results, out, outType, at, n);
  }
}

/**
 * Writes the 32 random words of eight counters, one counter after the other. Two groups of four
 * counters advance together, which hides the latency of the multiplications.
 */
@inline
export function philox32(counter: u64, key0: u32, key1: u32, out: usize): void {
  const next = counter + 4;
  let a0 = low4(counter);
  let a1 = high4(counter, a0);
  let a2 = i32x4.splat(0);
  let a3 = i32x4.splat(0);
  let b0 = low4(next);
  let b1 = high4(next, b0);
  let b2 = i32x4.splat(0);
  let b3 = i32x4.splat(0);
  const m0 = i32x4.splat(0xd2511f53);
  const m1 = i32x4.splat(0xcd9e8d57);
  for (let round = 0; round < 10; round++) {
    const k0 = i32x4.splat(<i32>key0);
    const k1 = i32x4.splat(<i32>key1);
    const aLow0 = i64x2.extmul_low_i32x4_u(a0, m0);
    const aHigh0 = i64x2.extmul_high_i32x4_u(a0, m0);
    const aLow1 = i64x2.extmul_low_i32x4_u(a2, m1);
    const aHigh1 = i64x2.extmul_high_i32x4_u(a2, m1);
    const bLow0 = i64x2.extmul_low_i32x4_u(b0, m0);
    const bHigh0 = i64x2.extmul_high_i32x4_u(b0, m0);
    const bLow1 = i64x2.extmul_low_i32x4_u(b2, m1);
    const bHigh1 = i64x2.extmul_high_i32x4_u(b2, m1);
    a0 = v128.xor(v128.xor(highs(aLow1, aHigh1), a1), k0);
    a1 = lows(aLow1, aHigh1);
    a2 = v128.xor(v128.xor(highs(aLow0, aHigh0), a3), k1);
    a3 = lows(aLow0, aHigh0);
    b0 = v128.xor(v128.xor(highs(bLow1, bHigh1), b1), k0);
    b1 = lows(bLow1, bHigh1);
    b2 = v128.xor(v128.xor(highs(bLow0, bHigh0), b3), k1);
    b3 = lows(bLow0, bHigh0);
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  storeByCounter(out, a0, a1, a2, a3);
  storeByCounter(out + 64, b0, b1, b2, b3);
}

/** Returns the low words of four counters. */
@inline
function low4(counter: u64): v128 {
  return i32x4.add(i32x4.splat(<i32>counter), i32x4(0, 1, 2, 3));
}

/** Returns the high words of four counters: one more where adding the lane's number wrapped. */
@inline
function high4(counter: u64, low: v128): v128 {
  const wrapped = i32x4.lt_u(low, i32x4.splat(<i32>counter));
  return i32x4.sub(i32x4.splat(<i32>(counter >> 32)), wrapped);
}

@inline
function lows(low: v128, high: v128): v128 {
  return v128.shuffle<i32>(low, high, 0, 2, 4, 6);
}

@inline
function highs(low: v128, high: v128): v128 {
  return v128.shuffle<i32>(low, high, 1, 3, 5, 7);
}

/**
 * Stores the words counter by counter. In the arguments each lane is a counter, so this transposes.
 */
@inline
function storeByCounter(out: usize, c0: v128, c1: v128, c2: v128, c3: v128): void {
  const t0 = v128.shuffle<i32>(c0, c1, 0, 4, 1, 5);
  const t1 = v128.shuffle<i32>(c2, c3, 0, 4, 1, 5);
  const t2 = v128.shuffle<i32>(c0, c1, 2, 6, 3, 7);
  const t3 = v128.shuffle<i32>(c2, c3, 2, 6, 3, 7);
  v128.store(out, v128.shuffle<i32>(t0, t1, 0, 1, 4, 5));
  v128.store(out, v128.shuffle<i32>(t0, t1, 2, 3, 6, 7), 16);
  v128.store(out, v128.shuffle<i32>(t2, t3, 0, 1, 4, 5), 32);
  v128.store(out, v128.shuffle<i32>(t2, t3, 2, 3, 6, 7), 48);
}
