// A gate is an activation of one operand times another. The two are separate operands or the halves
// of one.

import { narrow, storePartial, target, widen } from './convert';
import { backwardBlock, BLOCK_BYTES, GRAIN, unaryBlock } from './elementwise';
import { BLOCK, GATE_BOTH, GATE_FIRST, GATE_SECOND } from './layout';
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
 * The arguments are kind, part, gate, dtype, up, dtype, dy, dtype, out, dtype, rows, cols and row.
 */
export function gatedBackward(slot: usize, chunk: u32, chunks: u32): void {
  const kind = argI(slot, 0);
  const part = argI(slot, 1);
  const out = <usize>arg(slot, 8);
  const outType = argI(slot, 9);
  const cols = arg(slot, 11);
  const row = arg(slot, 12);
  const total = arg(slot, 10) * cols;
  const outRow = part == GATE_BOTH ? cols * 2 : cols;
  const scratch = scratchBase + BLOCK_BYTES * 3;
  const end = chunkStart(total, chunk + 1, chunks, GRAIN);
  let at = chunkStart(total, chunk, chunks, GRAIN);
  while (at < end) {
    const r = at / cols;
    const column = at - r * cols;
    const n = <i32>min<u32>(min<u32>(cols - column, end - at), BLOCK);
    const gate = widen(<usize>arg(slot, 2), argI(slot, 3), r * row + column, n, scratchBase);
    const dy = widen(<usize>arg(slot, 6), argI(slot, 7), at, n, scratchBase + BLOCK_BYTES);
    if (part != GATE_SECOND) {
      const up = widen(<usize>arg(slot, 4), argI(slot, 5), r * row + column, n, scratchBase + BLOCK_BYTES * 2);
      const to = r * outRow + column;
      const os = target(out, outType, to, scratch);
      multiply(dy, up, os, n);
      backwardBlock(kind, gate, os, os, n);
      narrow(os, out, outType, to, n);
    }
    if (part != GATE_FIRST) {
      const to = r * outRow + (outRow - cols) + column;
      const os = target(out, outType, to, scratch);
      unaryBlock(kind, gate, os, n);
      multiply(os, dy, os, n);
      narrow(os, out, outType, to, n);
    }
    at += n;
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
