// These kernels apply an operation to two operands with strides and write a dense output. The host
// merges dimensions first, so that the inner loop gets the longest rows possible. An operand's row
// is read where it lies (stride 1), is one repeated value (stride 0) or is gathered into scratch.

import { narrow, storePartial, target, widen } from './convert';
import { BLOCK_BYTES, GRAIN } from './elementwise';
import {
  BF16,
  BINARY_ADD,
  BINARY_DIV,
  BINARY_EQ,
  BINARY_GE,
  BINARY_GT,
  BINARY_LE,
  BINARY_LT,
  BINARY_MAXIMUM,
  BINARY_MINIMUM,
  BINARY_MUL,
  BINARY_NE,
  BINARY_POW,
  BINARY_SUB,
  BLOCK,
  U32,
} from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';
import { loadFloat } from './convert';

/** The words before the shape are kind, a, dtype, b, dtype, out, dtype, total and rank. */
const SHAPE = 9;

/**
 * The arguments are the words that SHAPE counts, then for each dimension (extent, a stride, b
 * stride), outermost first.
 */
export function binary(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  const a = <usize>arg(slot, 1);
  const aType = argI(slot, 2);
  const b = <usize>arg(slot, 3);
  const bType = argI(slot, 4);
  const out = <usize>arg(slot, 5);
  const outType = argI(slot, 6);
  const total = arg(slot, 7);
  const rank = argI(slot, 8);
  const inner = SHAPE + (rank - 1) * 3;
  const length = arg(slot, inner);
  const aStep = arg(slot, inner + 1);
  const bStep = arg(slot, inner + 2);
  const aScratch = scratchBase;
  const bScratch = scratchBase + BLOCK_BYTES;

  let at = chunkStart(total, chunk, chunks, GRAIN);
  const end = chunkStart(total, chunk + 1, chunks, GRAIN);
  while (at < end) {
    const row = at / length;
    const column = at - row * length;
    const n = <i32>min<u32>(min<u32>(length - column, end - at), BLOCK);
    const aAt = rowOffset(slot, rank, row, 1) + column * aStep;
    const bAt = rowOffset(slot, rank, row, 2) + column * bStep;
    if (kind >= BINARY_EQ) {
      const isFloat = aType <= BF16;
      const av = isFloat ? floats(a, aType, aAt, aStep, n, aScratch) : words(a, aAt, aStep, n, aScratch);
      const bv = isFloat ? floats(b, bType, bAt, bStep, n, bScratch) : words(b, bAt, bStep, n, bScratch);
      const to = out + ((<usize>at) << 2);
      if (isFloat) {
        compareFloats(kind, av, bv, to, n);
      } else {
        compareWords(kind, aType == U32, av, bv, to, n);
      }
    } else if (outType <= BF16) {
      const av = floats(a, aType, aAt, aStep, n, aScratch);
      const bv = floats(b, bType, bAt, bStep, n, bScratch);
      const os = target(out, outType, at, aScratch);
      floatBlock(kind, av, bv, os, n);
      narrow(os, out, outType, at, n);
    } else {
      const av = words(a, aAt, aStep, n, aScratch);
      const bv = words(b, bAt, bStep, n, bScratch);
      intBlock(kind, outType == U32, av, bv, out + ((<usize>at) << 2), n);
    }
    at += n;
  }
}

/** Returns the offset of a row in one operand: in a where `which` is 1, in b where it is 2. */
function rowOffset(slot: usize, rank: i32, row: u32, which: i32): u32 {
  let offset: u32 = 0;
  for (let d = rank - 2; d >= 0; d--) {
    const extent = arg(slot, SHAPE + d * 3);
    const index = row % extent;
    row /= extent;
    offset += index * arg(slot, SHAPE + d * 3 + which);
  }
  return offset;
}

/**
 * Returns the address of n values as f32, read with a step: their own where they are f32 with a
 * step of 1, else in scratch.
 */
export function floats(base: usize, dtype: i32, at: u32, step: u32, n: i32, scratch: usize): usize {
  if (step == 1) {
    return widen(base, dtype, at, n, scratch);
  }
  if (step == 0) {
    const v = f32x4.splat(loadFloat(base, dtype, at));
    for (let i = 0; i < n; i += 4) {
      v128.store(scratch + (i << 2), v);
    }
    return scratch;
  }
  for (let i = 0; i < n; i++) {
    store<f32>(scratch + (i << 2), loadFloat(base, dtype, at));
    at += step;
  }
  return scratch;
}

/**
 * Returns the address of n words, read with a step: their own where the step is 1, else in scratch.
 */
export function words(base: usize, at: u32, step: u32, n: i32, scratch: usize): usize {
  if (step == 1) {
    return base + ((<usize>at) << 2);
  }
  for (let i = 0; i < n; i++) {
    store<u32>(scratch + (i << 2), load<u32>(base + ((<usize>at) << 2)));
    at += step;
  }
  return scratch;
}

function floatBlock(kind: i32, a: usize, b: usize, out: usize, n: i32): void {
  switch (kind) {
    case BINARY_ADD: mapFloat(BINARY_ADD, a, b, out, n); break;
    case BINARY_SUB: mapFloat(BINARY_SUB, a, b, out, n); break;
    case BINARY_MUL: mapFloat(BINARY_MUL, a, b, out, n); break;
    case BINARY_DIV: mapFloat(BINARY_DIV, a, b, out, n); break;
    case BINARY_MAXIMUM: mapFloat(BINARY_MAXIMUM, a, b, out, n); break;
    case BINARY_MINIMUM: mapFloat(BINARY_MINIMUM, a, b, out, n); break;
    case BINARY_POW:
      for (let i = 0; i < n; i++) {
        const o = i << 2;
        store<f32>(out + o, power(load<f32>(a + o), load<f32>(b + o)));
      }
      break;
    default: unreachable();
  }
}

/** As C's pow, which has 1 where JavaScript's has NaN: 1 to any power, -1 to an infinite one. */
function power(a: f32, b: f32): f32 {
  if (a == 1 || (a == -1 && Mathf.abs(b) == Infinity)) {
    return 1;
  }
  return Mathf.pow(a, b);
}

@inline
function mapFloat(kind: i32, a: usize, b: usize, out: usize, n: i32): void {
  let i = 0;
  for (; i + 4 <= n; i += 4) {
    const o = i << 2;
    v128.store(out + o, applyFloat(kind, v128.load(a + o), v128.load(b + o)));
  }
  if (i < n) {
    const o = i << 2;
    storePartial(out + o, applyFloat(kind, v128.load(a + o), v128.load(b + o)), n - i);
  }
}

@inline
function applyFloat(kind: i32, a: v128, b: v128): v128 {
  if (kind == BINARY_ADD) return f32x4.add(a, b);
  if (kind == BINARY_SUB) return f32x4.sub(a, b);
  if (kind == BINARY_MUL) return f32x4.mul(a, b);
  if (kind == BINARY_DIV) return f32x4.div(a, b);
  if (kind == BINARY_MAXIMUM) return f32x4.max(a, b);
  return f32x4.min(a, b);
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

function intBlock(kind: i32, unsigned: bool, a: usize, b: usize, out: usize, n: i32): void {
  for (let i = 0; i < n; i += 4) {
    const o = i << 2;
    const av = v128.load(a + o);
    const bv = v128.load(b + o);
    let r: v128;
    if (kind == BINARY_ADD) {
      r = i32x4.add(av, bv);
    } else if (kind == BINARY_SUB) {
      r = i32x4.sub(av, bv);
    } else if (kind == BINARY_MUL) {
      r = i32x4.mul(av, bv);
    } else if (kind == BINARY_MAXIMUM) {
      r = unsigned ? i32x4.max_u(av, bv) : i32x4.max_s(av, bv);
    } else if (kind == BINARY_MINIMUM) {
      r = unsigned ? i32x4.min_u(av, bv) : i32x4.min_s(av, bv);
    } else {
      r = unreachable();
    }
    if (i + 4 <= n) {
      v128.store(out + o, r);
    } else {
      storePartial(out + o, r, n - i);
    }
  }
}
