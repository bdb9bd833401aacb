// This is the rotary position embedding: it turns pairs of a head's columns by angles that grow
// with the position. The angles of a token are computed once for all of its heads.

import { narrow, storePartial, target, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK } from './layout';
import { cosineOfTurns, sineOfTurns } from './math';
import { arg, argI, chunkStart, scratchBase } from './slot';

/**
 * The arguments are x, dtype, frequencies, positions or 0, out, dtype, tokens, heads, the number of
 * heads that turn, half of a head's columns, period, offset and whether to turn backwards.
 */
export function rotary(slot: usize, chunk: u32, chunks: u32): void {
  const frequencies = <usize>arg(slot, 2);
  const positions = <usize>arg(slot, 3);
  const tokens = arg(slot, 6);
  const heads = arg(slot, 7);
  const turning = arg(slot, 8);
  const half = arg(slot, 9);
  const period = arg(slot, 10);
  const end = chunkStart(tokens, chunk + 1, chunks, 1);
  for (let t = chunkStart(tokens, chunk, chunks, 1); t < end; t++) {
    const place = t % period;
    const position: i32 =
      positions != 0 ? load<i32>(positions + ((<usize>place) << 2)) : argI(slot, 11) + <i32>place;
    const first = t * heads * half * 2;
    for (let j: u32 = 0; j < half; j += BLOCK) {
      const n = <i32>min<u32>(half - j, BLOCK);
      angles(frequencies + ((<usize>j) << 2), half, n, position, argI(slot, 12) != 0);
      for (let h: u32 = 0; h < turning; h++) {
        turn(slot, first + h * half * 2 + j, half, n);
      }
    }
    for (let h = turning; h < heads; h++) {
      copyHead(slot, first + h * half * 2, half * 2);
    }
  }
}

/** Leaves the cosines in block 0 and the sines in block 1. */
function angles(words: usize, half: u32, n: i32, position: i32, isInverse: bool): void {
  const cosines = scratchBase;
  const sines = scratchBase + BLOCK_BYTES;
  const lows = words + ((<usize>half) << 2);
  for (let i = 0; i < n; i++) {
    const o = (<usize>i) << 2;
    const frequency = ((<u64>load<u32>(words + o)) << 32) | <u64>load<u32>(lows + o);
    // Whole turns are lost in the overflow. Of the rest the 32 high bits are kept.
    store<u32>(cosines + o, <u32>((<u64>(<i64>position) * frequency) >> 32));
  }
  const sign = i32x4.splat(isInverse ? 0x80000000 : 0);
  for (let i = 0; i < n; i += 4) {
    const o = (<usize>i) << 2;
    const phase = v128.load(cosines + o);
    v128.store(cosines + o, cosineOfTurns(phase));
    v128.store(sines + o, v128.xor(sineOfTurns(phase), sign));
  }
}

function turn(slot: usize, at: u32, half: u32, n: i32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 4);
  const outType = argI(slot, 5);
  const cosines = scratchBase;
  const sines = scratchBase + BLOCK_BYTES;
  const a = widen(x, xType, at, n, scratchBase + BLOCK_BYTES * 2);
  const b = widen(x, xType, at + half, n, scratchBase + BLOCK_BYTES * 3);
  const ra = target(out, outType, at, scratchBase + BLOCK_BYTES * 2);
  const rb = target(out, outType, at + half, scratchBase + BLOCK_BYTES * 3);
  for (let i = 0; i < n; i += 4) {
    const o = (<usize>i) << 2;
    const av = v128.load(a + o);
    const bv = v128.load(b + o);
    const c = v128.load(cosines + o);
    const s = v128.load(sines + o);
    const first = f32x4.sub(f32x4.mul(av, c), f32x4.mul(bv, s));
    const second = f32x4.add(f32x4.mul(bv, c), f32x4.mul(av, s));
    if (i + 4 <= n) {
      v128.store(ra + o, first);
      v128.store(rb + o, second);
    } else {
      storePartial(ra + o, first, n - i);
      storePartial(rb + o, second, n - i);
    }
  }
  narrow(ra, out, outType, at, n);
  narrow(rb, out, outType, at + half, n);
}

function copyHead(slot: usize, at: u32, cols: u32): void {
  for (let i: u32 = 0; i < cols; i += BLOCK) {
    const n = <i32>min<u32>(cols - i, BLOCK);
    const values = widen(<usize>arg(slot, 0), argI(slot, 1), at + i, n, scratchBase);
    narrow(values, <usize>arg(slot, 4), argI(slot, 5), at + i, n);
  }
}
