// The products of attention's blocks by a library of the host. A block of few queries by many keys
// wastes little beside a causal mask's edge, and is cut by the call's shape alone. Weights are 0
// for what a row does not visit, so that one product goes over all keys that some row visits. See
// Note [hidden keys] in attention-products.ts for NaN.

import {
  clearRows,
  DOUT_PANELS_AT,
  dim,
  dtype,
  K_ACROSS_AT,
  K_PANELS_AT,
  kAt,
  key0At,
  kBase,
  kRow,
  numKeys,
  numRows,
  OUT_AT,
  panelsOfRows,
  S_AT,
  V_ACROSS_AT,
  V_PANELS_AT,
  vAt,
  vBase,
  vRow,
} from './attention-call';
import { carefulColumns, carefulRows } from './attention-products';
import { findRanges, fromOf, isPartial, toOf } from './attention-visible';
import { widen } from './convert';
import { gemm } from './gemm';
import { ATTENTION_LONG, F32 } from './layout';
import { packStraight } from './pack';
import { LD } from './product-tile';
import { scratchBase } from './slot';

/** The queries and keys of a block. A thread has scratch for this many keys. */
export const NATIVE_ROWS: i32 = 64;
export const NATIVE_KEYS: i32 = ATTENTION_LONG;
/** The elements from row to row in scratch. */
const ROW: u32 = <u32>(LD >> 2);

/** The first key and value of the block in f32, and the elements from one to the next. */
let keys0: usize = 0;
let keyStep: u32 = 0;
let values0: usize = 0;
let valueStep: u32 = 0;
/** The first key of the block that some row visits, and how many there are from it on. */
let first: i32 = 0;
let count: i32 = 0;

/** Takes the block's keys and values where they are or, if they have 16 bits, widens them. */
export function placeKeys(): void {
  const step: u32 = (<u32>dim + 7) & ~7;
  keyStep = dtype == F32 ? kRow : step;
  valueStep = dtype == F32 ? vRow : step;
  keys0 = place(kBase, kAt + key0At * kRow, kRow, scratchBase + K_ACROSS_AT);
  values0 = place(vBase, vAt + key0At * vRow, vRow, scratchBase + V_ACROSS_AT);
}

function place(base: usize, at: u32, row: u32, to: usize): usize {
  const step = (<usize>((dim + 7) & ~7)) << 2;
  if (dtype == F32) {
    return base + ((<usize>at) << 2);
  }
  for (let j: u32 = 0; j < <u32>numKeys; j++) {
    widen(base, dtype, at + j * row, dim, to + <usize>j * step);
  }
  return to;
}

/** Finds what the current rows visit. Returns whether there is anything. */
export function findVisited(): bool {
  findRanges();
  first = fromOf(0);
  count = min(toOf(numRows - 1), numKeys) - first;
  return count > 0;
}

@inline
function keysOf(place: usize, step: u32): usize {
  return place + ((<usize>(<u32>first * step)) << 2);
}

@inline
function inRow(rows: usize): usize {
  return rows + (<usize>first << 2);
}

/** Computes rows . keys for all that is visited, scores where the rows are scaled queries. */
export function keyScores(rows: usize, out: usize): void {
  gemm(0, 1, numRows, count, dim, 1, rows, ROW, keysOf(keys0, keyStep), keyStep, 0, inRow(out), ROW);
}

export function valueScores(rows: usize, out: usize): void {
  const values = keysOf(values0, valueStep);
  gemm(0, 1, numRows, count, dim, 1, rows, ROW, values, valueStep, 0, inRow(out), ROW);
}

/** Clears what row r does not visit of the keys that others do. */
export function clearBeside(weights: usize, r: i32): void {
  const row = weights + <usize>r * LD;
  const zero = f32x4.splat(0);
  const from = fromOf(r);
  for (let j = first; j < from; j += 4) {
    v128.store(row + (j << 2), zero);
  }
  for (let j = max(toOf(r), first); j < first + count; j += 4) {
    v128.store(row + (j << 2), zero);
  }
}

/** Adds weights by values to the rows of results. */
export function addValues(weights: usize, out: usize): void {
  const values = keysOf(values0, valueStep);
  if (isPartial && !isFinite(values, valueStep, count)) {
    const panels = scratchBase + V_PANELS_AT;
    packStraight(vBase, dtype, vAt + key0At * vRow, vRow, numKeys, dim, 8, panels);
    carefulRows(weights, panels, out);
    return;
  }
  gemm(0, 0, numRows, dim, count, 1, inRow(weights), ROW, values, valueStep, 1, out, ROW);
}

/** Adds the transposed weights by rows of queries, or of dOut, to the rows of keys. */
export function addColumns(weights: usize, rows: usize, out: usize): void {
  if (isPartial && !isFinite(rows, ROW, numRows)) {
    const panels = scratchBase + DOUT_PANELS_AT;
    panelsOfRows(rows, numRows, panels);
    carefulColumns(weights, panels, out);
    return;
  }
  const to = out + <usize>first * LD;
  gemm(1, 0, count, dim, numRows, 1, inRow(weights), ROW, rows, ROW, 1, to, ROW);
}

/** Computes the gradients of scores by keys, unscaled, into OUT: the block's part of dq. */
export function keyGradients(): void {
  const slopes = scratchBase + S_AT;
  const out = scratchBase + OUT_AT;
  const keys = keysOf(keys0, keyStep);
  if (isPartial && !isFinite(keys, keyStep, count)) {
    const panels = scratchBase + K_PANELS_AT;
    packStraight(kBase, dtype, kAt + key0At * kRow, kRow, numKeys, dim, 8, panels);
    clearRows(out, numRows);
    carefulRows(slopes, panels, out);
    return;
  }
  gemm(0, 0, numRows, dim, count, 1, inRow(slopes), ROW, keys, keyStep, 0, out, ROW);
}

/** Returns whether n rows of f32, `step` elements apart, are finite. */
function isFinite(rows: usize, step: u32, n: i32): bool {
  const zero = f32x4.splat(0);
  const whole = dim & ~3;
  let sums = zero;
  let rest: f32 = 0;
  for (let r = 0; r < n; r++) {
    for (let d = 0; d < whole; d += 4) {
      sums = f32x4.add(sums, f32x4.mul(v128.load(rows + (d << 2)), zero));
    }
    for (let d = whole; d < dim; d++) {
      rest += load<f32>(rows + (d << 2)) * 0;
    }
    rows += (<usize>step) << 2;
  }
  return rest == 0 && i32x4.all_true(f32x4.eq(sums, zero));
}
