// These kernels are unary functions with their gradients, and affine. Each makes one pass over
// dense views, block by block.

import { narrow, storePartial, target, widen } from './convert';
import {
  BLOCK,
  UNARY_ABS,
  UNARY_COS,
  UNARY_EXP,
  UNARY_GELU,
  UNARY_GELU_TANH,
  UNARY_LOG,
  UNARY_NEG,
  UNARY_RECIPROCAL,
  UNARY_RELU,
  UNARY_RSQRT,
  UNARY_SIGMOID,
  UNARY_SILU,
  UNARY_SIN,
  UNARY_SQRT,
  UNARY_SQUARE,
  UNARY_TANH,
} from './layout';
import { geluTanh, geluTanhBackward } from './gelu-tanh';
import {
  exp4,
  expOfMagnitude,
  gauss4,
  log4,
  normalCdf4,
  sigmoid4,
  sigmoidOf,
  siluSlope,
  tanh4,
} from './math';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

/** Chunks start at multiples of this many elements, so that threads don't share a cache line. */
export const GRAIN = 64;
/** The bytes of one block in scratch, with room for whole vectors past its end. */
export const BLOCK_BYTES: usize = BLOCK * 4 + 64;

/** The arguments are kind, x, dtype, out, dtype and size. */
export function unary(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  const x = <usize>arg(slot, 1);
  const xType = argI(slot, 2);
  const out = <usize>arg(slot, 3);
  const outType = argI(slot, 4);
  const size = arg(slot, 5);
  const start = chunkStart(size, chunk, chunks, GRAIN);
  const end = chunkStart(size, chunk + 1, chunks, GRAIN);
  for (let at = start; at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    const xs = widen(x, xType, at, n, scratchBase);
    const os = target(out, outType, at, scratchBase);
    unaryBlock(kind, xs, os, n);
    narrow(os, out, outType, at, n);
  }
}

/** The arguments are kind, x, dtype, dy, dtype, out, dtype and size. */
export function unaryBackward(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  const x = <usize>arg(slot, 1);
  const xType = argI(slot, 2);
  const dy = <usize>arg(slot, 3);
  const dyType = argI(slot, 4);
  const out = <usize>arg(slot, 5);
  const outType = argI(slot, 6);
  const size = arg(slot, 7);
  const start = chunkStart(size, chunk, chunks, GRAIN);
  const end = chunkStart(size, chunk + 1, chunks, GRAIN);
  const scratch2 = scratchBase + BLOCK_BYTES;
  for (let at = start; at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    const xs = widen(x, xType, at, n, scratchBase);
    const ds = widen(dy, dyType, at, n, scratch2);
    const os = target(out, outType, at, scratchBase);
    backwardBlock(kind, xs, ds, os, n);
    narrow(os, out, outType, at, n);
  }
}

/** The arguments are x, dtype, out, dtype, size, scale and shift. */
export function affine(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 2);
  const outType = argI(slot, 3);
  const size = arg(slot, 4);
  const scale = f32x4.splat(argF(slot, 5));
  const shift = f32x4.splat(argF(slot, 6));
  const start = chunkStart(size, chunk, chunks, GRAIN);
  const end = chunkStart(size, chunk + 1, chunks, GRAIN);
  for (let at = start; at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    const xs = widen(x, xType, at, n, scratchBase);
    const os = target(out, outType, at, scratchBase);
    let i = 0;
    for (; i + 4 <= n; i += 4) {
      v128.store(os + (i << 2), f32x4.add(f32x4.mul(v128.load(xs + (i << 2)), scale), shift));
    }
    if (i < n) {
      const v = f32x4.add(f32x4.mul(v128.load(xs + (i << 2)), scale), shift);
      storePartial(os + (i << 2), v, n - i);
    }
    narrow(os, out, outType, at, n);
  }
}

/** Applies the function to n values. */
export function unaryBlock(kind: i32, x: usize, out: usize, n: i32): void {
  switch (kind) {
    case UNARY_NEG: mapUnary(UNARY_NEG, x, out, n); break;
    case UNARY_ABS: mapUnary(UNARY_ABS, x, out, n); break;
    case UNARY_EXP: mapUnary(UNARY_EXP, x, out, n); break;
    case UNARY_LOG: mapUnary(UNARY_LOG, x, out, n); break;
    case UNARY_SQRT: mapUnary(UNARY_SQRT, x, out, n); break;
    case UNARY_RSQRT: mapUnary(UNARY_RSQRT, x, out, n); break;
    case UNARY_SQUARE: mapUnary(UNARY_SQUARE, x, out, n); break;
    case UNARY_RECIPROCAL: mapUnary(UNARY_RECIPROCAL, x, out, n); break;
    case UNARY_TANH: mapUnary(UNARY_TANH, x, out, n); break;
    case UNARY_SIGMOID: mapUnary(UNARY_SIGMOID, x, out, n); break;
    case UNARY_RELU: mapUnary(UNARY_RELU, x, out, n); break;
    case UNARY_SILU: mapUnary(UNARY_SILU, x, out, n); break;
    case UNARY_SIN: sines(x, out, n); break;
    case UNARY_COS: cosines(x, out, n); break;
    case UNARY_GELU: mapUnary(UNARY_GELU, x, out, n); break;
    case UNARY_GELU_TANH: geluTanh(x, out, n); break;
    default: unreachable();
  }
}

function sines(x: usize, out: usize, n: i32): void {
  for (let o = 0; o < n << 2; o += 4) {
    store<f32>(out + o, Mathf.sin(load<f32>(x + o)));
  }
}

function cosines(x: usize, out: usize, n: i32): void {
  for (let o = 0; o < n << 2; o += 4) {
    store<f32>(out + o, Mathf.cos(load<f32>(x + o)));
  }
}

/** This is inlined once for each kind, which is then a constant whose tests are compiled away. */
@inline
function mapUnary(kind: i32, x: usize, out: usize, n: i32): void {
  let i = 0;
  // Each iteration handles two vectors, since V8 rebuilds the constants of a polynomial in every
  // iteration, which takes as long as the polynomial itself.
  for (; i + 8 <= n; i += 8) {
    const first = apply(kind, v128.load(x + (i << 2)));
    const second = apply(kind, v128.load(x + (i << 2), 16));
    v128.store(out + (i << 2), first);
    v128.store(out + (i << 2), second, 16);
  }
  for (; i + 4 <= n; i += 4) {
    v128.store(out + (i << 2), apply(kind, v128.load(x + (i << 2))));
  }
  if (i < n) {
    storePartial(out + (i << 2), apply(kind, v128.load(x + (i << 2))), n - i);
  }
}

@inline
function apply(kind: i32, x: v128): v128 {
  const one = f32x4.splat(1);
  if (kind == UNARY_NEG) return f32x4.neg(x);
  if (kind == UNARY_ABS) return f32x4.abs(x);
  if (kind == UNARY_EXP) return exp4(x);
  if (kind == UNARY_LOG) return log4(x);
  if (kind == UNARY_SQRT) return f32x4.sqrt(x);
  if (kind == UNARY_RSQRT) return f32x4.div(one, f32x4.sqrt(x));
  if (kind == UNARY_SQUARE) return f32x4.mul(x, x);
  if (kind == UNARY_RECIPROCAL) return f32x4.div(one, x);
  if (kind == UNARY_TANH) return tanh4(x);
  if (kind == UNARY_SIGMOID) return sigmoid4(x);
  // WebAssembly's max keeps NaN.
  if (kind == UNARY_RELU) return f32x4.max(x, f32x4.splat(0));
  if (kind == UNARY_SILU) return f32x4.mul(x, sigmoid4(x));
  if (kind == UNARY_GELU) return f32x4.mul(x, normalCdf4(x, gauss4(x)));
  return unreachable();
}

/** Computes dy * f' of n values. */
export function backwardBlock(kind: i32, x: usize, dy: usize, out: usize, n: i32): void {
  switch (kind) {
    case UNARY_NEG: mapBackward(UNARY_NEG, x, dy, out, n); break;
    case UNARY_ABS: mapBackward(UNARY_ABS, x, dy, out, n); break;
    case UNARY_EXP: mapBackward(UNARY_EXP, x, dy, out, n); break;
    case UNARY_LOG: mapBackward(UNARY_LOG, x, dy, out, n); break;
    case UNARY_SQRT: mapBackward(UNARY_SQRT, x, dy, out, n); break;
    case UNARY_RSQRT: mapBackward(UNARY_RSQRT, x, dy, out, n); break;
    case UNARY_SQUARE: mapBackward(UNARY_SQUARE, x, dy, out, n); break;
    case UNARY_RECIPROCAL: mapBackward(UNARY_RECIPROCAL, x, dy, out, n); break;
    case UNARY_TANH: mapBackward(UNARY_TANH, x, dy, out, n); break;
    case UNARY_SIGMOID: mapBackward(UNARY_SIGMOID, x, dy, out, n); break;
    case UNARY_RELU: mapBackward(UNARY_RELU, x, dy, out, n); break;
    case UNARY_SILU: mapBackward(UNARY_SILU, x, dy, out, n); break;
    case UNARY_SIN:
      for (let o = 0; o < n << 2; o += 4) {
        store<f32>(out + o, load<f32>(dy + o) * Mathf.cos(load<f32>(x + o)));
      }
      break;
    case UNARY_COS:
      for (let o = 0; o < n << 2; o += 4) {
        store<f32>(out + o, -load<f32>(dy + o) * Mathf.sin(load<f32>(x + o)));
      }
      break;
    case UNARY_GELU: mapBackward(UNARY_GELU, x, dy, out, n); break;
    case UNARY_GELU_TANH: geluTanhBackward(x, dy, out, n); break;
    default: unreachable();
  }
}

@inline
function mapBackward(kind: i32, x: usize, dy: usize, out: usize, n: i32): void {
  let i = 0;
  for (; i + 8 <= n; i += 8) {
    const o = i << 2;
    const first = applyBackward(kind, v128.load(x + o), v128.load(dy + o));
    const second = applyBackward(kind, v128.load(x + o, 16), v128.load(dy + o, 16));
    v128.store(out + o, first);
    v128.store(out + o, second, 16);
  }
  for (; i + 4 <= n; i += 4) {
    const o = i << 2;
    v128.store(out + o, applyBackward(kind, v128.load(x + o), v128.load(dy + o)));
  }
  if (i < n) {
    const o = i << 2;
    storePartial(out + o, applyBackward(kind, v128.load(x + o), v128.load(dy + o)), n - i);
  }
}

@inline
function applyBackward(kind: i32, x: v128, dy: v128): v128 {
  const one = f32x4.splat(1);
  const zero = f32x4.splat(0);
  if (kind == UNARY_NEG) return f32x4.neg(dy);
  if (kind == UNARY_ABS) {
    const unit = v128.or(one, v128.and(x, i32x4.splat(0x80000000)));
    // The slope of abs at 0 and at NaN is x itself.
    const isSlope = v128.or(f32x4.lt(x, zero), f32x4.gt(x, zero));
    return f32x4.mul(dy, v128.bitselect(unit, x, isSlope));
  }
  if (kind == UNARY_EXP) return f32x4.mul(dy, exp4(x));
  if (kind == UNARY_LOG) return f32x4.div(dy, x);
  if (kind == UNARY_SQRT) return f32x4.div(f32x4.mul(dy, f32x4.splat(0.5)), f32x4.sqrt(x));
  if (kind == UNARY_RSQRT) {
    const half = f32x4.mul(dy, f32x4.splat(-0.5));
    return f32x4.div(half, f32x4.mul(x, f32x4.sqrt(x)));
  }
  if (kind == UNARY_SQUARE) return f32x4.mul(dy, f32x4.add(x, x));
  if (kind == UNARY_RECIPROCAL) return f32x4.neg(f32x4.div(dy, f32x4.mul(x, x)));
  if (kind == UNARY_TANH) {
    const t = tanh4(x);
    return f32x4.mul(dy, f32x4.mul(f32x4.sub(one, t), f32x4.add(one, t)));
  }
  if (kind == UNARY_SIGMOID) {
    const e = expOfMagnitude(x);
    return f32x4.mul(dy, f32x4.mul(sigmoidOf(x, e), sigmoidOf(f32x4.neg(x), e)));
  }
  // Multiplying, rather than masking, keeps a NaN in dy where the slope is 0.
  if (kind == UNARY_RELU) return f32x4.mul(dy, v128.and(one, f32x4.gt(x, zero)));
  if (kind == UNARY_SILU) return f32x4.mul(dy, siluSlope(x, expOfMagnitude(x)));
  if (kind == UNARY_GELU) {
    const gauss = gauss4(x);
    const density = f32x4.mul(gauss, f32x4.splat(0.3989422804014327));
    return f32x4.mul(dy, f32x4.add(normalCdf4(x, gauss), f32x4.mul(x, density)));
  }
  return unreachable();
}
