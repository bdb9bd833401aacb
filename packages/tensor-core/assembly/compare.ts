// These kernels compare two operands, and choose between two by a mask, all with strides. The host
// merges dimensions first.

import { narrow, storePartial, target } from './convert';
import { BLOCK_BYTES, GRAIN } from './elementwise';
import {
  BF16,
  BINARY_EQ,
  BINARY_GE,
  BINARY_GT,
  BINARY_LE,
  BINARY_LT,
  BINARY_NE,
  BLOCK,
  U32,
} from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';
import { floats, words } from './strided';

/**
 * Compares n operands of a dtype, all f32 where it is a float. Their walk is that of `binary`
 * (elementwise-binary.ts).
 */
export function compare(kind: i32, dtype: i32, a: usize, b: usize, out: usize, n: i32): void {
  if (dtype <= BF16) {
    compareFloats(kind, a, b, out, n);
  } else {
    compareWords(kind, dtype == U32, a, b, out, n);
  }
}

function compareFloats(kind: i32, a: usize, b: usize, out: usize, n: i32): void {
  for (let i = 0; i < n; i += 4) {
    const o = i << 2;
    const av = v128.load(a + o);
    const bv = v128.load(b + o);
    let r: v128;
    if (kind == BINARY_EQ) r = f32x4.eq(av, bv);
    else if (kind == BINARY_NE) r = f32x4.ne(av, bv);
    else if (kind == BINARY_LT) r = f32x4.lt(av, bv);
    else if (kind == BINARY_LE) r = f32x4.le(av, bv);
    else if (kind == BINARY_GT) r = f32x4.gt(av, bv);
    else if (kind == BINARY_GE) r = f32x4.ge(av, bv);
    else r = unreachable();
    storeMask(r, out + o, n - i);
  }
}

function compareWords(kind: i32, unsigned: bool, a: usize, b: usize, out: usize, n: i32): void {
  // Flipping the sign bit makes the order of unsigned words that of signed ones.
  const flip = i32x4.splat(unsigned ? 0x80000000 : 0);
  for (let i = 0; i < n; i += 4) {
    const o = i << 2;
    const av = v128.xor(v128.load(a + o), flip);
    const bv = v128.xor(v128.load(b + o), flip);
    let r: v128;
    if (kind == BINARY_EQ) r = i32x4.eq(av, bv);
    else if (kind == BINARY_NE) r = i32x4.ne(av, bv);
    else if (kind == BINARY_LT) r = i32x4.lt_s(av, bv);
    else if (kind == BINARY_LE) r = i32x4.le_s(av, bv);
    else if (kind == BINARY_GT) r = i32x4.gt_s(av, bv);
    else if (kind == BINARY_GE) r = i32x4.ge_s(av, bv);
    else r = unreachable();
    storeMask(r, out + o, n - i);
  }
}

/**
 * Stores 1 for each lane of the mask that is set and 0 for the others. `left` counts the results
 * that remain, of which this vector stores up to four.
 */
@inline
function storeMask(mask: v128, out: usize, left: i32): void {
  const ones = v128.and(mask, i32x4.splat(1));
  if (left >= 4) {
    v128.store(out, ones);
  } else {
    storePartial(out, ones, left);
  }
}

/** The words before the shape are condition, a, dtype, b, dtype, out, dtype, total and rank. */
const SHAPE = 9;

/**
 * The arguments are the words that SHAPE counts, then for each dimension (extent, condition stride,
 * a stride, b stride), outermost first.
 */
export function where(slot: usize, chunk: u32, chunks: u32): void {
  const out = <usize>arg(slot, 5);
  const outType = argI(slot, 6);
  const total = arg(slot, 7);
  const rank = argI(slot, 8);
  const inner = SHAPE + (rank - 1) * 4;
  const length = arg(slot, inner);
  let at = chunkStart(total, chunk, chunks, GRAIN);
  const end = chunkStart(total, chunk + 1, chunks, GRAIN);
  while (at < end) {
    const row = at / length;
    const column = at - row * length;
    const n = <i32>min<u32>(min<u32>(length - column, end - at), BLOCK);
    const mask = words(
      <usize>arg(slot, 0),
      offsetOf(slot, rank, row, 1) + column * arg(slot, inner + 1),
      arg(slot, inner + 1),
      n,
      scratchBase,
    );
    const av = operand(slot, 1, offsetOf(slot, rank, row, 2) + column * arg(slot, inner + 2), arg(slot, inner + 2), n);
    const bv = operand(slot, 3, offsetOf(slot, rank, row, 3) + column * arg(slot, inner + 3), arg(slot, inner + 3), n);
    const isFloat = outType <= BF16;
    const os = isFloat
      ? target(out, outType, at, scratchBase + BLOCK_BYTES * 3)
      : out + ((<usize>at) << 2);
    choose(mask, av, bv, os, n);
    if (isFloat) {
      narrow(os, out, outType, at, n);
    }
    at += n;
  }
}

/**
 * Returns the values of the operand whose address is argument `i`, a for 1 and b for 3. Block 1 or
 * 2 is its scratch.
 */
function operand(slot: usize, i: i32, at: u32, step: u32, n: i32): usize {
  const base = <usize>arg(slot, i);
  const dtype = argI(slot, i + 1);
  const scratch = scratchBase + BLOCK_BYTES * (i == 1 ? 1 : 2);
  return dtype <= BF16 ? floats(base, dtype, at, step, n, scratch) : words(base, at, step, n, scratch);
}

function offsetOf(slot: usize, rank: i32, row: u32, which: i32): u32 {
  let offset: u32 = 0;
  for (let d = rank - 2; d >= 0; d--) {
    const extent = arg(slot, SHAPE + d * 4);
    offset += (row % extent) * arg(slot, SHAPE + d * 4 + which);
    row /= extent;
  }
  return offset;
}

function choose(mask: usize, a: usize, b: usize, out: usize, n: i32): void {
  for (let i = 0; i < n; i += 4) {
    const o = i << 2;
    const isSet = i32x4.ne(v128.load(mask + o), i32x4.splat(0));
    const v = v128.bitselect(v128.load(a + o), v128.load(b + o), isSet);
    if (i + 4 <= n) {
      v128.store(out + o, v);
    } else {
      storePartial(out + o, v, n - i);
    }
  }
}
