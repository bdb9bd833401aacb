// These kernels apply an operation to two operands with strides and write a dense output. The host
// merges dimensions first, so that the inner loop gets the longest rows possible.

import { compare } from './compare';
import { narrow, storePartial, target } from './convert';
import { BLOCK_BYTES, GRAIN } from './elementwise';
import {
  BF16,
  BINARY_ADD,
  BINARY_DIV,
  BINARY_EQ,
  BINARY_MAXIMUM,
  BINARY_MINIMUM,
  BINARY_MUL,
  BINARY_POW,
  BINARY_SUB,
  BLOCK,
  U32,
} from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';
import { floats, words } from './strided';

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
      compare(kind, aType, av, bv, out + ((<usize>at) << 2), n);
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
