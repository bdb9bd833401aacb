// Dot products of one row with rows of a matrix in ggml's blocks, in whole numbers: each 32 numbers
// of the row are rounded to 8 bits with a scale of their own, as llama.cpp does. A number of the
// matrix then costs half of what it costs in block-dots.ts. Products and sums of whole numbers
// are exact, and what follows is neither fused nor in another order in any build, so that results
// have the same bits everywhere.
//
// Note [a rounded row]
// Each 32 numbers become 144 bytes: 32 bytes; 32 words of 16 bits, which are the same numbers; the
// sums of the first 16 and of the last 16, in four lanes each; the scale, four times.
// Lane l of a sum has the numbers 4 l to 4 l + 3. Unsigned codes of a block are multiplied without
// their middle, of which these sums give the rest.

import { scaleAt } from './block-dots';
import { fifthBits, highFifths, lowFifths, sixBitCodes, sixBitPair } from './blocks';
import { RowDots } from './dots';
import {
  BLOCKS_Q4_0,
  BLOCKS_Q4_1,
  BLOCKS_Q4_K,
  BLOCKS_Q5_0,
  BLOCKS_Q5_1,
  BLOCKS_Q5_K,
  BLOCKS_Q8_0,
} from './layout';
import { sumLanes } from './reduce';

const GROUP_BYTES: usize = 144;
const WORDS: usize = 32;
const SUMS: usize = 96;
const SCALE: usize = 128;
/** Numbers that are all smaller than this become 0, since their scale has no inverse. */
const LEAST: f32 = 1e-30;

/** Rounds n numbers, of which there are whole groups of 32. */
export function roundRow(row: usize, n: u32, to: usize): void {
  for (const end = row + ((<usize>n) << 2); row < end; row += 128, to += GROUP_BYTES) {
    let most = f32x4.abs(v128.load(row));
    for (let at: usize = 16; at < 128; at += 16) {
      most = f32x4.max(most, f32x4.abs(v128.load(row + at)));
    }
    most = f32x4.max(most, v128.shuffle<i32>(most, most, 2, 3, 0, 1));
    most = f32x4.max(most, v128.shuffle<i32>(most, most, 1, 0, 3, 2));
    const largest = f32x4.extract_lane(most, 0);
    const isTiny = largest < LEAST; // false for NaN, which its scale hands on
    const inverse = f32x4.splat(isTiny ? 0 : 127 / largest);
    v128.store(to, f32x4.splat(isTiny ? 0 : largest / 127), SCALE);
    for (let half: usize = 0; half < 2; half++) {
      const from = row + half * 64;
      const low = i16x8.narrow_i32x4_s(rounded(from, inverse), rounded(from + 16, inverse));
      const high = i16x8.narrow_i32x4_s(rounded(from + 32, inverse), rounded(from + 48, inverse));
      v128.store(to + half * 32, low, WORDS);
      v128.store(to + half * 32, high, WORDS + 16);
      v128.store(to + half * 16, i8x16.narrow_i16x8_s(low, high));
      v128.store(to + half * 16, sumsOfFours(low, high), SUMS);
    }
  }
}

@inline
function rounded(at: usize, inverse: v128): v128 {
  return i32x4.trunc_sat_f32x4_s(f32x4.nearest(f32x4.mul(v128.load(at), inverse)));
}

/** Sixteen numbers of 16 bits become the sums of each four in turn. */
@inline
function sumsOfFours(low: v128, high: v128): v128 {
  const a = i32x4.extadd_pairwise_i16x8_s(low);
  const b = i32x4.extadd_pairwise_i16x8_s(high);
  return i32x4.add(
    v128.shuffle<i32>(a, b, 0, 2, 4, 6),
    v128.shuffle<i32>(a, b, 1, 3, 5, 7),
  );
}

/** The loops take a rounded row in place of one in f32. */
export function roundedDotsOf(type: i32): RowDots {
  switch (type) {
    case BLOCKS_Q8_0:
      return q8Dots;
    case BLOCKS_Q4_0:
      return q4Dots;
    case BLOCKS_Q4_1:
      return q41Dots;
    case BLOCKS_Q5_0:
      return q5Dots;
    case BLOCKS_Q5_1:
      return q51Dots;
    case BLOCKS_Q4_K:
      return q4KDots;
    case BLOCKS_Q5_K:
      return q5KDots;
    default:
      return q6KDots;
  }
}

function q8Dots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total = f32x4.splat(0);
    let y = b;
    const last = a + ((<usize>n) >> 5) * GROUP_BYTES;
    for (let x = a; x < last; x += GROUP_BYTES, y += 34) {
      let sum = i32x4.dot_i16x8_s(v128.load(x, WORDS), v128.load_ext<i8>(y, 2));
      sum = i32x4.add(sum, i32x4.dot_i16x8_s(v128.load(x, WORDS + 16), v128.load_ext<i8>(y, 10)));
      sum = i32x4.add(sum, i32x4.dot_i16x8_s(v128.load(x, WORDS + 32), v128.load_ext<i8>(y, 18)));
      sum = i32x4.add(sum, i32x4.dot_i16x8_s(v128.load(x, WORDS + 48), v128.load_ext<i8>(y, 26)));
      total = f32x4.add(total, scaled(sum, scaleAt(y), x));
    }
    store<f32>(out, sumLanes(total));
  }
}

function q4Dots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  nibbleDots(a, b, false, false, row, rows, n, out);
}
function q41Dots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  nibbleDots(a, b, true, false, row, rows, n, out);
}
function q5Dots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  nibbleDots(a, b, false, true, row, rows, n, out);
}
function q51Dots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  nibbleDots(a, b, true, true, row, rows, n, out);
}
function q4KDots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  subBlockDots(a, b, false, row, rows, n, out);
}
function q5KDots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  subBlockDots(a, b, true, row, rows, n, out);
}

/** Blocks of q4_0, q4_1, q5_0 or q5_1. */
@inline
function nibbleDots(
  a: usize,
  b: usize,
  hasMinimum: bool,
  hasFifthBit: bool,
  row: usize,
  rows: i32,
  n: u32,
  out: usize,
): void {
  const codesAt: usize = (hasMinimum ? 4 : 2) + (hasFifthBit ? 4 : 0);
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total = f32x4.splat(0);
    let y = b;
    const last = a + ((<usize>n) >> 5) * GROUP_BYTES;
    for (let x = a; x < last; x += GROUP_BYTES, y += codesAt + 16) {
      const codes = v128.load(y + codesAt);
      let low = v128.and(codes, i8x16.splat(15));
      let high = i8x16.shr_u(codes, 4);
      if (hasFifthBit) {
        const bits = v128.load32_zero(y + codesAt - 4);
        low = v128.or(low, lowFifths(bits));
        high = v128.or(high, highFifths(bits));
      }
      let sum = i32x4.add(dot(v128.load(x), low), dot(v128.load(x, 16), high));
      const whole = i32x4.add(v128.load(x, SUMS), v128.load(x, SUMS + 16));
      if (!hasMinimum) {
        sum = i32x4.sub(sum, i32x4.shl(whole, hasFifthBit ? 4 : 3));
      }
      total = f32x4.add(total, scaled(sum, scaleAt(y), x));
      if (hasMinimum) {
        total = f32x4.add(total, scaled(whole, scaleAt(y + 2), x));
      }
    }
    store<f32>(out, sumLanes(total));
  }
}

/** Blocks of q4_K or q5_K. */
@inline
function subBlockDots(
  a: usize,
  b: usize,
  hasFifthBit: bool,
  row: usize,
  rows: i32,
  n: u32,
  out: usize,
): void {
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total = f32x4.splat(0);
    let y = b;
    let x = a;
    const last = a + ((<usize>n) >> 5) * GROUP_BYTES;
    while (x < last) {
      const scale = scaleAt(y);
      const minimum = scaleAt(y + 2);
      let at = y + (hasFifthBit ? 48 : 16);
      // Two parts share 32 bytes. Shifts are constant: V8 makes many instructions of others.
      for (let part: u32 = 0; part < 8; part += 2, x += GROUP_BYTES * 2, at += 32) {
        const codes = v128.load(at);
        const further = v128.load(at, 16);
        let bits = i8x16.splat(<i8>(<i32>1 << <i32>part));
        let pair = sixBitPair(y + 4, part);
        let first = v128.and(codes, i8x16.splat(15));
        let second = v128.and(further, i8x16.splat(15));
        if (hasFifthBit) {
          first = v128.or(first, fifthBits(v128.load(y, 16), bits));
          second = v128.or(second, fifthBits(v128.load(y, 32), bits));
        }
        total = f32x4.add(total, subBlockDot(x, first, second, pair, scale, minimum));
        pair = sixBitPair(y + 4, part + 1);
        first = i8x16.shr_u(codes, 4);
        second = i8x16.shr_u(further, 4);
        if (hasFifthBit) {
          bits = i8x16.add(bits, bits);
          first = v128.or(first, fifthBits(v128.load(y, 16), bits));
          second = v128.or(second, fifthBits(v128.load(y, 32), bits));
        }
        const next = x + GROUP_BYTES;
        total = f32x4.add(total, subBlockDot(next, first, second, pair, scale, minimum));
      }
      y = at;
    }
    store<f32>(out, sumLanes(total));
  }
}

/** The 32 products of a part, whose codes are given, with its scale and minimum. */
@inline
function subBlockDot(
  x: usize,
  first: v128,
  second: v128,
  pair: u32,
  scale: v128,
  minimum: v128,
): v128 {
  const sum = i32x4.add(dot(v128.load(x), first), dot(v128.load(x, 16), second));
  const whole = i32x4.add(v128.load(x, SUMS), v128.load(x, SUMS + 16));
  const own = scaled(i32x4.mul(sum, i32x4.splat(pair & 63)), scale, x);
  return f32x4.sub(own, scaled(i32x4.mul(whole, i32x4.splat(pair >> 8)), minimum, x));
}

function q6KDots(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total = f32x4.splat(0);
    let y = b;
    let x = a;
    const last = a + ((<usize>n) >> 5) * GROUP_BYTES;
    for (; x < last; y += 210) {
      const scale = scaleAt(y + 208);
      for (let half: usize = 0; half < 2; half++, x += GROUP_BYTES * 4) {
        total = f32x4.add(total, sixBitDots(x, y, half, 0, scale));
        total = f32x4.add(total, sixBitDots(x + GROUP_BYTES, y, half, 1, scale));
        total = f32x4.add(total, sixBitDots(x + GROUP_BYTES * 2, y, half, 2, scale));
        total = f32x4.add(total, sixBitDots(x + GROUP_BYTES * 3, y, half, 3, scale));
      }
    }
    store<f32>(out, sumLanes(total));
  }
}

/** The 32 products of part `part` of four of a half of a block, times their scales. */
@inline
function sixBitDots(x: usize, y: usize, half: usize, part: u32, scale: v128): v128 {
  return scaled(
    i32x4.add(sixBitDot(x, y, half, part, 0), sixBitDot(x, y, half, part, 1)),
    scale,
    x,
  );
}

@inline
function sixBitDot(x: usize, y: usize, half: usize, part: u32, i: u32): v128 {
  const at = <usize>(i << 4);
  const codes = sixBitCodes(y + half * 64, y + 128 + half * 32, part, i);
  const sum = i32x4.sub(dot(v128.load(x + at), codes), i32x4.shl(v128.load(x + at, SUMS), 5));
  return i32x4.mul(sum, i32x4.splat(<i32>load<i8>(y + half * 8 + <usize>(part * 2 + i), 192)));
}

/** Whole numbers times the scale of a block and that of a group of the row. */
@inline
function scaled(sum: v128, scale: v128, x: usize): v128 {
  return f32x4.mul(f32x4.convert_i32x4_s(sum), f32x4.mul(scale, v128.load(x, SCALE)));
}

/**
 * The products of 16 signed bytes and 16 codes below 64, in the lanes of Note [a rounded row]. The
 * instruction of relaxed SIMD is exact for such codes.
 */
@inline
function dot(numbers: v128, codes: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) {
    return i32x4.extadd_pairwise_i16x8_s(v128.relaxed_dot<i16>(numbers, codes));
  }
  const low = i16x8.extmul_low_i8x16_s(numbers, codes);
  return sumsOfFours(low, i16x8.extmul_high_i8x16_s(numbers, codes));
}
