// A gate is an activation of one operand times another. The two are separate operands or the halves
// of one.

import { narrow, storePartial, target, widen } from './convert';
import { backwardBlock, BLOCK_BYTES, GRAIN, unaryBlock } from './elementwise';
import { BLOCK, GATE_BOTH, GATE_FIRST, GATE_SECOND, UNARY_SILU } from './layout';
import { expOfMagnitude, sigmoidOf, siluSlope } from './math';
import { arg, argI, chunkStart, scratchBase } from './slot';

/**
 * The arguments are kind, gate, dtype, up, dtype, out, dtype, rows, cols and row, the elements from
 * one row of gate and up to the next.
 */
export function gated(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  const out = <usize>arg(slot, 5);
  const outType = argI(slot, 6);
  const cols = arg(slot, 8);
  const row = arg(slot, 9);
  const total = arg(slot, 7) * cols;
  const end = chunkStart(total, chunk + 1, chunks, GRAIN);
  let at = chunkStart(total, chunk, chunks, GRAIN);
  while (at < end) {
    const r = at / cols;
    const column = at - r * cols;
    const n = <i32>min<u32>(min<u32>(cols - column, end - at), BLOCK);
    const gate = widen(<usize>arg(slot, 1), argI(slot, 2), r * row + column, n, scratchBase);
    const up = widen(<usize>arg(slot, 3), argI(slot, 4), r * row + column, n, scratchBase + BLOCK_BYTES);
    const os = target(out, outType, at, scratchBase + BLOCK_BYTES * 2);
    unaryBlock(kind, gate, os, n);
    multiply(os, up, os, n);
    narrow(os, out, outType, at, n);
    at += n;
  }
}

/**
 * The arguments are kind, part, gate, dtype, up, dtype, dy, dtype, out, dtype, the place of up's
 * gradient beside gate's or 0, its dtype, rows, cols and row.
 */
export function gatedBackward(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  const part = argI(slot, 1);
  const out = <usize>arg(slot, 8);
  const outType = argI(slot, 9);
  const isApart = arg(slot, 10) != 0;
  const outUp = isApart ? <usize>arg(slot, 10) : out;
  const outUpType = isApart ? argI(slot, 11) : outType;
  const cols = arg(slot, 13);
  const row = arg(slot, 14);
  const total = arg(slot, 12) * cols;
  const outRow = part == GATE_BOTH && !isApart ? cols * 2 : cols;
  const scratch = scratchBase + BLOCK_BYTES * 3;
  const upScratch = scratchBase + BLOCK_BYTES * 4;
  const end = chunkStart(total, chunk + 1, chunks, GRAIN);
  let at = chunkStart(total, chunk, chunks, GRAIN);
  while (at < end) {
    const r = at / cols;
    const column = at - r * cols;
    const n = <i32>min<u32>(min<u32>(cols - column, end - at), BLOCK);
    const gate = widen(<usize>arg(slot, 2), argI(slot, 3), r * row + column, n, scratchBase);
    const dy = widen(<usize>arg(slot, 6), argI(slot, 7), at, n, scratchBase + BLOCK_BYTES);
    const to = r * outRow + column;
    const toUp = to + outRow - cols;
    const os = target(out, outType, to, scratch);
    const us = target(outUp, outUpType, toUp, upScratch);
    if (part != GATE_SECOND) {
      const up = widen(<usize>arg(slot, 4), argI(slot, 5), r * row + column, n, scratchBase + BLOCK_BYTES * 2);
      multiply(dy, up, os, n);
    }
    if (part == GATE_BOTH && kind == UNARY_SILU) {
      siluGradients(gate, dy, os, us, n);
    } else {
      if (part != GATE_SECOND) {
        backwardBlock(kind, gate, os, os, n);
      }
      if (part != GATE_FIRST) {
        unaryBlock(kind, gate, us, n);
        multiply(us, dy, us, n);
      }
    }
    if (part != GATE_SECOND) {
      narrow(os, out, outType, to, n);
    }
    if (part != GATE_FIRST) {
      narrow(us, outUp, outUpType, toUp, n);
    }
    at += n;
  }
}

/**
 * Both gradients of silu(gate) * up from one exponential. `toGate` holds dy * up, and receives the
 * gate's; `toUp` receives up's.
 */
function siluGradients(gate: usize, dy: usize, toGate: usize, toUp: usize, n: i32): void {
  let i = 0;
  // Two vectors an iteration, as in mapUnary.
  for (; i + 8 <= n; i += 8) {
    const o = i << 2;
    const x = v128.load(gate + o);
    const y = v128.load(gate + o, 16);
    const ex = expOfMagnitude(x);
    const ey = expOfMagnitude(y);
    v128.store(toGate + o, f32x4.mul(v128.load(toGate + o), siluSlope(x, ex)));
    v128.store(toGate + o, f32x4.mul(v128.load(toGate + o, 16), siluSlope(y, ey)), 16);
    v128.store(toUp + o, f32x4.mul(f32x4.mul(x, sigmoidOf(x, ex)), v128.load(dy + o)));
    v128.store(toUp + o, f32x4.mul(f32x4.mul(y, sigmoidOf(y, ey)), v128.load(dy + o, 16)), 16);
  }
  for (; i < n; i += 4) {
    const o = i << 2;
    const x = v128.load(gate + o);
    const e = expOfMagnitude(x);
    const slope = f32x4.mul(v128.load(toGate + o), siluSlope(x, e));
    const value = f32x4.mul(f32x4.mul(x, sigmoidOf(x, e)), v128.load(dy + o));
    if (i + 4 <= n) {
      v128.store(toGate + o, slope);
      v128.store(toUp + o, value);
    } else {
      storePartial(toGate + o, slope, n - i);
      storePartial(toUp + o, value, n - i);
    }
  }
}

function multiply(a: usize, b: usize, out: usize, n: i32): void {
  let i = 0;
  for (; i + 4 <= n; i += 4) {
    const o = i << 2;
    v128.store(out + o, f32x4.mul(v128.load(a + o), v128.load(b + o)));
  }
  if (i < n) {
    const o = i << 2;
    storePartial(out + o, f32x4.mul(v128.load(a + o), v128.load(b + o)), n - i);
  }
}
