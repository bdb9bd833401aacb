// This is the running softmax of attention. Each row keeps its largest score, the sum of
// exponentials and the weighted sum of values so far. When a block brings a larger score, both sums
// are scaled to it. Row r of the current block is kept in scratch row slot0 + r, since several
// heads may be worked on at once.

import {
  dim,
  dtype,
  firstRow,
  hasDropout,
  keptScale,
  loadRows,
  lseBase,
  MOST_AT,
  numRows,
  OUT_AT,
  outAt,
  outBase,
  outRow,
  Q_AT,
  qAt,
  qBase,
  qRow,
  row0,
  S_AT,
  SEEN_AT,
  SMALLEST,
  SUM_AT,
  scale,
  slot0,
} from './attention-call';
import {
  drawWords,
  fromOf,
  kept4,
  prepareRow,
  scored4,
  seesAll,
  toOf,
  visible4,
} from './attention-visible';
import { narrow } from './convert';
import { exp4, expOfNegative4 } from './math';
import { LD } from './product-tile';
import { maxLanes, sumLanes } from './reduce';
import { scratchBase } from './slot';

/** Loads the scaled queries of the current rows and clears their sums. */
export function startRows(): void {
  const at = <usize>slot0 * LD;
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, scratchBase + Q_AT + at, scale);
  memory.fill(scratchBase + OUT_AT + at, 0, <usize>numRows * LD);
  for (let r = slot0; r < slot0 + numRows; r++) {
    store<f32>(scratchBase + MOST_AT + (r << 2), SMALLEST);
    store<f32>(scratchBase + SUM_AT + (r << 2), 0);
    store<u32>(scratchBase + SEEN_AT + (r << 2), 0);
  }
}

/**
 * Divides the rows by their sums and stores the results and log-sum-exps. A row that has seen no
 * key gives zeros and -infinity.
 */
export function finishRows(): void {
  for (let r = 0; r < numRows; r++) {
    const at = slot0 + r;
    const most = load<f32>(scratchBase + MOST_AT + (at << 2));
    const sum = load<f32>(scratchBase + SUM_AT + (at << 2));
    const seen = load<u32>(scratchBase + SEEN_AT + (at << 2)) != 0;
    const out = scratchBase + OUT_AT + <usize>at * LD;
    let inverse: f32 = 0;
    let lse: f32 = SMALLEST;
    if (seen) {
      // Where all scores are -infinity, as PyTorch's softmax has it, the result is NaN.
      inverse = most == SMALLEST ? NaN : 1 / sum;
      lse = most == SMALLEST ? NaN : <f32>(<f64>most + Math.log(<f64>sum));
    }
    const f = f32x4.splat(inverse);
    for (let d = 0; d < dim; d += 4) {
      const o = out + (d << 2);
      v128.store(o, seen ? f32x4.mul(v128.load(o), f) : f32x4.splat(0));
    }
    narrow(out, outBase, dtype, outAt + (row0 + <u32>r) * outRow, dim);
    store<f32>(lseBase + ((<usize>(firstRow + row0 + <u32>r)) << 2), lse);
  }
}

/**
 * Turns the scores of row r of the block into weights, and scales what was summed before to the new
 * largest score.
 */
export function weigh(r: i32): void {
  const from = fromOf(r);
  const to = toOf(r);
  const at = slot0 + r;
  const s = scratchBase + S_AT + <usize>at * LD;
  const row = row0 + <u32>r;
  let seen = i32x4.splat(-1);
  let m = f32x4.splat(SMALLEST);
  prepareRow(row);
  // pmax may drop a NaN. It shows up in the sum of exponentials anyway.
  if (seesAll) {
    for (let j = from; j < to; j += 8) {
      const o = s + (j << 2);
      m = f32x4.pmax(m, f32x4.pmax(v128.load(o), v128.load(o, 16)));
    }
  } else {
    seen = i32x4.splat(0);
    for (let j = from; j < to; j += 4) {
      const o = s + (j << 2);
      const visible = visible4(j);
      const v = v128.bitselect(scored4(o, j), f32x4.splat(SMALLEST), visible);
      seen = v128.or(seen, visible);
      m = f32x4.pmax(m, v);
      v128.store(o, v);
    }
  }
  const mostAt = scratchBase + MOST_AT + (at << 2);
  const sumAt = scratchBase + SUM_AT + (at << 2);
  const before = load<f32>(mostAt);
  const most = max<f32>(before, maxLanes(m));
  const shift: f32 = most == SMALLEST ? 0 : most;
  const shift4 = f32x4.splat(shift);
  let sums = f32x4.splat(0);
  for (let j = from; j < to; j += 8) {
    const o = s + (j << 2);
    const low = expOfNegative4(f32x4.sub(v128.load(o), shift4));
    const high = expOfNegative4(f32x4.sub(v128.load(o, 16), shift4));
    sums = f32x4.add(sums, f32x4.add(low, high));
    v128.store(o, low);
    v128.store(o, high, 16);
  }
  if (hasDropout) {
    drawWords(row, from, to);
    for (let j = from; j < to; j += 4) {
      const o = s + (j << 2);
      const kept = f32x4.mul(v128.load(o), f32x4.splat(keptScale));
      v128.store(o, v128.and(kept, kept4(j)));
    }
  }
  const sum = sumLanes(sums);
  if (v128.any_true(seen)) {
    store<u32>(scratchBase + SEEN_AT + (at << 2), 1);
  }
  store<f32>(mostAt, most);
  if (before == most || before == SMALLEST) {
    store<f32>(sumAt, load<f32>(sumAt) + sum);
    return;
  }
  const factor = f32x4.extract_lane(exp4(f32x4.splat(before - most)), 0);
  store<f32>(sumAt, load<f32>(sumAt) * factor + sum);
  const f = f32x4.splat(factor);
  const out = scratchBase + OUT_AT + <usize>at * LD;
  for (let d = 0; d < dim; d += 4) {
    v128.store(out + (d << 2), f32x4.mul(v128.load(out + (d << 2)), f));
  }
}
