// This is the running softmax of attention. Each row keeps its largest score, the sum of
// exponentials and the weighted sum of values so far. When a block brings a larger score, both sums
// are scaled to it. Row r of the current block is kept in scratch row slot0 + r, since several
// heads may be worked on at once.

import {
  clearRows,
  dim,
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
  storeScaled,
} from './attention-call';
import {
  drawWords,
  fromOf,
  kept4,
  nextEdge,
  prepareRow,
  scored4,
  toOf,
  visible4,
  wholeFrom,
  wholeTo,
} from './attention-visible';
import { expOfNegative4, log4 } from './math';
import { LD } from './product-tile';
import { sumLanes } from './reduce';
import { scratchBase } from './slot';

/** Loads the scaled queries of the current rows and clears their sums. */
export function startRows(): void {
  const at = <usize>slot0 * LD;
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, scratchBase + Q_AT + at, scale);
  clearRows(scratchBase + OUT_AT + at, numRows);
  for (let r = slot0; r < slot0 + numRows; r++) {
    v128.store(scratchBase + MOST_AT + (r << 4), f32x4.splat(SMALLEST));
    v128.store(scratchBase + SUM_AT + (r << 4), f32x4.splat(0));
    v128.store(scratchBase + SEEN_AT + (r << 4), i32x4.splat(0));
  }
}

/**
 * Divides the rows by their sums and stores the results and log-sum-exps. A row that has seen no
 * key gives zeros and -infinity.
 */
export function finishRows(): void {
  for (let r = 0; r < numRows; r++) {
    const at = slot0 + r;
    const most = load<f32>(scratchBase + MOST_AT + (at << 4));
    const sum = sumLanes(v128.load(scratchBase + SUM_AT + (at << 4)));
    const seen = v128.any_true(v128.load(scratchBase + SEEN_AT + (at << 4)));
    const out = scratchBase + OUT_AT + <usize>at * LD;
    let inverse: f32 = 0;
    let lse: f32 = SMALLEST;
    if (!seen) {
      clearRows(out, 1);
    } else {
      // Where all scores are -infinity, as PyTorch's softmax has it, the result is NaN.
      const log = f32x4.extract_lane(log4(f32x4.splat(sum)), 0);
      inverse = most == SMALLEST ? NaN : 1 / sum;
      lse = most == SMALLEST ? NaN : <f32>(<f64>most + <f64>log);
    }
    storeScaled(out, inverse, outBase, outAt + (row0 + <u32>r) * outRow);
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
  if (from >= to) {
    return;
  }
  const at = slot0 + r;
  const s = scratchBase + S_AT + <usize>at * LD;
  const row = row0 + <u32>r;
  prepareRow(row);
  const start = wholeFrom;
  const end = wholeTo;
  const seenAt = scratchBase + SEEN_AT + (at << 4);
  let seen = v128.or(v128.load(seenAt), i32x4.splat(start < end ? -1 : 0));
  let m = f32x4.splat(SMALLEST);
  // pmax may drop a NaN. It shows up in the sum of exponentials anyway.
  for (let j = nextEdge(from, start, end); j < to; j = nextEdge(j + 4, start, end)) {
    const o = s + (j << 2);
    const visible = visible4(j);
    const v = v128.bitselect(scored4(o, j), f32x4.splat(SMALLEST), visible);
    seen = v128.or(seen, visible);
    m = f32x4.pmax(m, v);
    v128.store(o, v);
  }
  for (let j = start; j < end; j += 8) {
    const o = s + (j << 2);
    m = f32x4.pmax(m, f32x4.pmax(v128.load(o), v128.load(o, 16)));
  }
  v128.store(seenAt, seen);
  m = f32x4.pmax(m, v128.shuffle<i32>(m, m, 2, 3, 0, 1));
  m = f32x4.pmax(m, v128.shuffle<i32>(m, m, 1, 0, 3, 2));
  const mostAt = scratchBase + MOST_AT + (at << 4);
  const sumAt = scratchBase + SUM_AT + (at << 4);
  const before = v128.load(mostAt);
  const most = f32x4.pmax(before, m);
  const smallest = f32x4.splat(SMALLEST);
  const shift = v128.andnot(most, f32x4.eq(most, smallest));
  let sums = f32x4.splat(0);
  for (let j = from; j < to; j += 8) {
    const o = s + (j << 2);
    const low = expOfNegative4(f32x4.sub(v128.load(o), shift));
    const high = expOfNegative4(f32x4.sub(v128.load(o, 16), shift));
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
  v128.store(mostAt, most);
  const isLarger = v128.andnot(f32x4.ne(before, most), f32x4.eq(before, smallest));
  if (!v128.any_true(isLarger)) {
    v128.store(sumAt, f32x4.add(v128.load(sumAt), sums));
    return;
  }
  const f = expOfNegative4(f32x4.sub(before, most));
  v128.store(sumAt, f32x4.add(f32x4.mul(v128.load(sumAt), f), sums));
  const out = scratchBase + OUT_AT + <usize>at * LD;
  for (let d = 0; d < dim; d += 4) {
    v128.store(out + (d << 2), f32x4.mul(v128.load(out + (d << 2)), f));
  }
}
