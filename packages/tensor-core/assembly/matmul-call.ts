// These variables hold what a thread works on in a matrix product: the call's arguments and one of
// its batches. With them is what all ways to multiply share: the places in scratch, the bias and
// the storing of results. They can be globals, since a thread runs one command at a time and
// threads don't share them.

import { narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK, MATMUL_COLUMNS } from './layout';
import { arg, argF, argI, scratchBase } from './slot';

/** The most columns in a row of biases or zeros. */
export const BIAS_COLUMNS: i32 = MATMUL_COLUMNS;

// A tile, the bias and zeros stand behind the four blocks, which packing uses.
export const TILE_OFFSET: usize = BLOCK_BYTES * 4;
const BIAS_OFFSET: usize = TILE_OFFSET + 256;
const ZERO_OFFSET: usize = BIAS_OFFSET + BIAS_COLUMNS * 4 + 64;
/** From here on each way to multiply has its own layout. */
export const OWN_OFFSET: usize = ZERO_OFFSET + BIAS_COLUMNS * 4 + 64;

export let aBase: usize = 0;
export let aType: i32 = 0;
export let aRow: u32 = 0;
export let transposeA: bool = false;
export let bBase: usize = 0;
export let bType: i32 = 0;
export let bRow: u32 = 0;
export let transposeB: bool = false;
export let outBase: usize = 0;
export let outType: i32 = 0;
export let outRow: u32 = 0;
export let biasBase: usize = 0;
export let biasType: i32 = 0;
export let depth: u32 = 0;
export let alpha: f32 = 1;
export let accumulate: bool = false;
/** The first element of the current batch in each view. */
export let aAt: u32 = 0;
export let bAt: u32 = 0;
export let outAt: u32 = 0;

/** Reads the arguments that concern the whole call; matmul.ts lists them. */
export function openCall(slot: usize): void {
  aBase = <usize>arg(slot, 0);
  aType = argI(slot, 1);
  bBase = <usize>arg(slot, 2);
  bType = argI(slot, 3);
  outBase = <usize>arg(slot, 4);
  outType = argI(slot, 5);
  biasBase = <usize>arg(slot, 6);
  biasType = argI(slot, 7);
  depth = arg(slot, 10);
  transposeA = argI(slot, 11) != 0;
  transposeB = argI(slot, 12) != 0;
  aRow = arg(slot, 13);
  bRow = arg(slot, 14);
  outRow = arg(slot, 15);
  alpha = argF(slot, 24);
  accumulate = argI(slot, 25) != 0;
}

/**
 * Goes to batch s. Batches are numbered over an outer and an inner dimension, the latter with
 * `inner` batches.
 */
export function openBatch(slot: usize, s: u32, inner: u32): void {
  const o = s / inner;
  const i = s - o * inner;
  aAt = o * arg(slot, 18) + i * arg(slot, 19);
  bAt = o * arg(slot, 20) + i * arg(slot, 21);
  outAt = o * arg(slot, 22) + i * arg(slot, 23);
}

/**
 * Stores n finished f32 values as results from element `at` on. With `accumulate` it adds what is
 * there.
 */
export function storeRow(values: usize, at: u32, n: i32): void {
  if (accumulate) {
    for (let i = 0; i < n; i += BLOCK) {
      const part = min(n - i, BLOCK);
      const old = widen(outBase, outType, at + i, part, scratchBase);
      for (let c = 0; c < part; c += 4) {
        const v = values + ((<usize>(i + c)) << 2);
        v128.store(v, f32x4.add(v128.load(v), v128.load(old + (c << 2))));
      }
    }
  }
  narrow(values, outBase, outType, at, n);
}

/**
 * Returns the address of the bias of nc columns, at most BIAS_COLUMNS, or of zeros where there is
 * none. Whole vectors can be read.
 */
export function loadBias(j: u32, nc: i32): usize {
  if (biasBase == 0) {
    return zeroRow(nc);
  }
  return widen(biasBase, biasType, j, nc, scratchBase + BIAS_OFFSET);
}

export function zeroRow(nc: i32): usize {
  const zeros = scratchBase + ZERO_OFFSET;
  memory.fill(zeros, 0, ((<usize>nc) << 2) + 64);
  return zeros;
}
