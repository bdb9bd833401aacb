// Decodes rows of a matrix in ggml's blocks (packages/dtypes/src/blocks says where each bit lies).
// Sixteen numbers at a time become bytes, then f32: scale * number - minimum. The product is exact,
// so that the result has the same bits on every device.

import { f16ToF32, narrow } from './convert';
import {
  BLOCK,
  BLOCKS_Q4_1,
  BLOCKS_Q4_K,
  BLOCKS_Q5_0,
  BLOCKS_Q5_1,
  BLOCKS_Q5_K,
  BLOCKS_Q6_K,
  BLOCKS_Q8_0,
  F32,
} from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';

/**
 * The arguments are words, ids or 0, out, dtype, type, rows, the bytes of a row, the first byte of
 * each row that counts, the first row, count and columns.
 */
export function decodeBlocks(slot: usize, chunk: u32, chunks: u32): void {
  const words = <usize>arg(slot, 0);
  const ids = <usize>arg(slot, 1);
  const out = <usize>arg(slot, 2);
  const outType = argI(slot, 3);
  const type = argI(slot, 4);
  const rows = arg(slot, 5);
  const rowBytes = <usize>arg(slot, 6);
  const from = words + <usize>arg(slot, 7);
  const firstRow = arg(slot, 8);
  const count = arg(slot, 9);
  const columns = arg(slot, 10);
  const end = chunkStart(count, chunk + 1, chunks, 1);
  for (let i = chunkStart(count, chunk, chunks, 1); i < end; i++) {
    // A negative id, read as unsigned, lies outside of the rows, too. Ids outside give zeros.
    const row = ids == 0 ? firstRow + i : load<u32>(ids + ((<usize>i) << 2));
    let at = from + (<usize>row) * rowBytes;
    for (let c: u32 = 0; c < columns; c += BLOCK) {
      const n = <i32>min<u32>(columns - c, BLOCK);
      const to = i * columns + c;
      const values = outType == F32 ? out + ((<usize>to) << 2) : scratchBase;
      if (row < rows) {
        at = decodeRun(type, at, n, values);
      } else {
        memory.fill(values, 0, (<usize>n) << 2);
      }
      narrow(values, out, outType, to, n);
    }
  }
}

/** Decodes whole blocks of n numbers in all, and returns the address after them. */
export function decodeRun(type: i32, at: usize, n: i32, to: usize): usize {
  const end = to + ((<usize>n) << 2);
  while (to < end) {
    if (type == BLOCKS_Q8_0) {
      const scale = half(at);
      sixteen(to, v128.load(at, 2), scale, i32x4.splat(0));
      sixteen(to + 64, v128.load(at, 18), scale, i32x4.splat(0));
      at += 34;
      to += 128;
    } else if (type >= BLOCKS_Q4_K) {
      at = type == BLOCKS_Q6_K ? sixBitBlock(at, to) : subBlocks(at, to, type == BLOCKS_Q5_K);
      to += 1024;
    } else {
      const hasMinimum = type == BLOCKS_Q4_1 || type == BLOCKS_Q5_1;
      at = nibbleBlock(at, to, hasMinimum, type == BLOCKS_Q5_0 || type == BLOCKS_Q5_1);
      to += 128;
    }
  }
  return at;
}

/** A block of q4_0, q4_1, q5_0 or q5_1. Returns the address after it. */
@inline
function nibbleBlock(at: usize, to: usize, hasMinimum: bool, hasFifthBit: bool): usize {
  const scale = half(at);
  at += 2;
  let minimum = i32x4.splat(0);
  if (hasMinimum) {
    minimum = f32x4.neg(half(at)); // these two types add it
    at += 2;
  }
  let low = i32x4.splat(0);
  let high = i32x4.splat(0);
  if (hasFifthBit) {
    const bits = v128.load32_zero(at);
    low = lowFifths(bits);
    high = highFifths(bits);
    at += 4;
  }
  const middle = i8x16.splat(hasMinimum ? 0 : hasFifthBit ? 16 : 8);
  const bytes = v128.load(at);
  sixteen(to, i8x16.sub(v128.or(lowNibbles(bytes), low), middle), scale, minimum);
  sixteen(to + 64, i8x16.sub(v128.or(highNibbles(bytes), high), middle), scale, minimum);
  return at + 16;
}

/** A block of q4_K or q5_K: 8 parts of 32, two of which share 32 bytes. */
@inline
function subBlocks(at: usize, to: usize, hasFifthBit: bool): usize {
  const scale = half(at);
  const minimum = half(at + 2);
  const fifths = at + 16;
  let nibbles = fifths + (hasFifthBit ? 32 : 0);
  for (let part: u32 = 0; part < 8; part++) {
    const pair = sixBitPair(at + 4, part);
    const partScale = f32x4.mul(scale, f32x4.splat(<f32>(pair & 63)));
    const partMinimum = f32x4.mul(minimum, f32x4.splat(<f32>(pair >> 8)));
    for (let i: usize = 0; i < 32; i += 16) {
      const bytes = v128.load(nibbles + i);
      let numbers = part & 1 ? highNibbles(bytes) : lowNibbles(bytes);
      if (hasFifthBit) {
        const bits = i8x16.splat(<i8>(<i32>1 << <i32>part));
        numbers = v128.or(numbers, fifthBits(v128.load(fifths + i), bits));
      }
      sixteen(to, numbers, partScale, partMinimum);
      to += 64;
    }
    nibbles += part & 1 ? 32 : 0;
  }
  return nibbles;
}

/** The scale of a part, and in the byte above it its minimum. */
@inline
export function sixBitPair(at: usize, part: u32): u32 {
  const near = at + part;
  if (part < 4) {
    return (<u32>load<u8>(near) & 63) | ((<u32>load<u8>(near, 4) & 63) << 8);
  }
  const low = <u32>load<u8>(near, 4);
  const scale = (low & 15) | ((<u32>load<u8>(near - 4) >> 6) << 4);
  return scale | (((low >> 4) | ((<u32>load<u8>(near) >> 6) << 4)) << 8);
}

/** A block of q6_K: 16 parts of 16 with signed scales. */
@inline
function sixBitBlock(at: usize, to: usize): usize {
  const scale = half(at + 208);
  for (let part: u32 = 0; part < 8; part++) {
    for (let i: u32 = 0; i < 2; i++) {
      const own = f32x4.splat(<f32>load<i8>(at + 192 + part * 2 + i));
      sixteen(to, sixBitNumbers(at, part, i), f32x4.mul(scale, own), i32x4.splat(0));
      to += 64;
    }
  }
  return at + 210;
}

/** Sixteen numbers of q6_K as signed bytes: half i of part `part` of eight. */
@inline
export function sixBitNumbers(at: usize, part: u32, i: u32): v128 {
  const half = <usize>(part >> 2);
  const codes = sixBitCodes(at + half * 64, at + 128 + half * 32, part & 3, i);
  return i8x16.sub(codes, i8x16.splat(32));
}

/**
 * These numbers plus 32, so that none is negative: of the four low bits and the two high ones of a
 * half of a block, those of part `part` of four.
 */
@inline
export function sixBitCodes(lows: usize, highs: usize, part: u32, i: u32): v128 {
  const bytes = v128.load(lows + (part & 1) * 32 + i * 16);
  const low = part < 2 ? lowNibbles(bytes) : highNibbles(bytes);
  const high = v128.and(i8x16.shr_u(v128.load(highs + i * 16), part * 2), i8x16.splat(3));
  return v128.or(low, i8x16.shl(high, 4));
}

/** Stores 16 signed bytes as scale * byte - minimum. */
@inline
function sixteen(to: usize, bytes: v128, scale: v128, minimum: v128): void {
  const low = i16x8.extend_low_i8x16_s(bytes);
  const high = i16x8.extend_high_i8x16_s(bytes);
  v128.store(to, four(i32x4.extend_low_i16x8_s(low), scale, minimum));
  v128.store(to, four(i32x4.extend_high_i16x8_s(low), scale, minimum), 16);
  v128.store(to, four(i32x4.extend_low_i16x8_s(high), scale, minimum), 32);
  v128.store(to, four(i32x4.extend_high_i16x8_s(high), scale, minimum), 48);
}

@inline
function four(numbers: v128, scale: v128, minimum: v128): v128 {
  return f32x4.sub(f32x4.mul(f32x4.convert_i32x4_s(numbers), scale), minimum);
}

/** The fifth bits of the first 16 of 32 numbers, as 16 or 0, from the bits of all. */
@inline
export function lowFifths(bits: v128): v128 {
  const bytes = i8x16.shuffle(bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  return fifthBits(bytes, i64x2.splat(0x8040201008040201));
}

/** Those of the last 16. */
@inline
export function highFifths(bits: v128): v128 {
  const bytes = i8x16.shuffle(bits, bits, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  return fifthBits(bytes, i64x2.splat(0x8040201008040201));
}

/** 16 in each byte in which any of the bits is set, else 0. */
@inline
export function fifthBits(bytes: v128, bits: v128): v128 {
  return v128.and(i8x16.ne(v128.and(bytes, bits), i8x16.splat(0)), i8x16.splat(16));
}

@inline
function lowNibbles(bytes: v128): v128 {
  return v128.and(bytes, i8x16.splat(15));
}

@inline
function highNibbles(bytes: v128): v128 {
  return i8x16.shr_u(bytes, 4);
}

/** An f16 in four lanes. */
@inline
function half(at: usize): v128 {
  return f16ToF32(i32x4.splat(<i32>load<u16>(at)));
}
