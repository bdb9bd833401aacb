// Attention in blocks of queries by keys (Dao, "FlashAttention-2", 2023). A thread takes blocks of
// queries. Sums depend on shapes alone, never on the split.

import {
  batch,
  dim,
  dtype,
  firstRow,
  hasDropout,
  heads,
  FORWARD_KEYS,
  FORWARD_ROWS,
  K_ACROSS_AT,
  kAt,
  kBase,
  keptScale,
  kRow,
  loadRows,
  lseBase,
  MOST_AT,
  numKeys,
  numRows,
  OUT_AT,
  open,
  openHead,
  openKeys,
  openRows,
  outAt,
  outBase,
  outRow,
  Q_AT,
  qAt,
  qBase,
  qRow,
  queries,
  row0,
  S_AT,
  SEEN_AT,
  SMALLEST,
  SUM_AT,
  scale,
  V_PANELS_AT,
  vAt,
  vBase,
  vRow,
} from './attention-call';
import { keyProducts, rowProducts } from './attention-products';
import { fewRowProducts, fewRowSums, isFew } from './attention-few-rows';
import {
  drawWords,
  findRanges,
  fromOf,
  hiOf,
  isPartial,
  kept4,
  loOf,
  prepareRow,
  scored4,
  seesAll,
  sharesSegment,
  toOf,
  visible4,
} from './attention-visible';
import { narrow } from './convert';
import { exp4, expOfNegative4 } from './math';
import { packStraight, packTransposed } from './pack';
import { LD } from './product-tile';
import { maxLanes, sumLanes } from './reduce';
import { chunkStart, scratchBase } from './slot';

export function attention(slot: usize, chunk: u32, chunks: u32): void {
  open(slot);
  const blocks = (queries + FORWARD_ROWS - 1) / FORWARD_ROWS;
  const units = batch * heads * blocks;
  const end = chunkStart(units, chunk + 1, chunks, 1);
  for (let unit = chunkStart(units, chunk, chunks, 1); unit < end; unit++) {
    const head = unit / blocks;
    openHead(slot, head / heads, head % heads);
    // The last first: under a causal mask they take longest, and would leave other threads idle.
    openRows((blocks - 1 - (unit % blocks)) * FORWARD_ROWS, FORWARD_ROWS);
    forwardRows();
  }
}

/** One block of queries with all keys that it sees. */
function forwardRows(): void {
  const q = scratchBase + Q_AT;
  const s = scratchBase + S_AT;
  const v = scratchBase + V_PANELS_AT;
  const out = scratchBase + OUT_AT;
  const across = scratchBase + K_ACROSS_AT;
  loadRows(qBase, qAt + row0 * qRow, qRow, numRows, q, scale);
  memory.fill(out, 0, <usize>numRows * LD);
  for (let r = 0; r < numRows; r++) {
    store<f32>(scratchBase + MOST_AT + (r << 2), SMALLEST);
    store<f32>(scratchBase + SUM_AT + (r << 2), 0);
    store<u32>(scratchBase + SEEN_AT + (r << 2), 0);
  }
  const last = hiOf(row0 + <u32>numRows - 1);
  for (let first = loOf(row0) / FORWARD_KEYS * FORWARD_KEYS; first < last; first += FORWARD_KEYS) {
    openKeys(first, FORWARD_KEYS);
    if (!sharesSegment()) {
      continue;
    }
    findRanges();
    if (isFew()) {
      fewRowProducts(q, s);
    } else {
      packTransposed(kBase, dtype, kAt + first * kRow, kRow, dim, numKeys, 8, across);
      rowProducts(q, across, s);
    }
    for (let r = 0; r < numRows; r++) {
      weigh(r);
    }
    if (isFew() && !isPartial) {
      fewRowSums(s, out);
    } else {
      packStraight(vBase, dtype, vAt + first * vRow, vRow, numKeys, dim, 8, v);
      keyProducts(s, v, out);
    }
  }
  finishRows();
}

/** Divides by the sums and stores results and log-sum-exps. */
function finishRows(): void {
  for (let r = 0; r < numRows; r++) {
    const most = load<f32>(scratchBase + MOST_AT + (r << 2));
    const sum = load<f32>(scratchBase + SUM_AT + (r << 2));
    const seen = load<u32>(scratchBase + SEEN_AT + (r << 2)) != 0;
    const out = scratchBase + OUT_AT + <usize>r * LD;
    let inverse: f32 = 0;
    let lse: f32 = SMALLEST;
    if (seen) {
      // A row whose scores are all -infinity has no largest one to take out.
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

/** Row r of the block: scores become weights, and what was summed before is brought to the new maximum. */
function weigh(r: i32): void {
  const from = fromOf(r);
  const to = toOf(r);
  const s = scratchBase + S_AT + <usize>r * LD;
  const row = row0 + <u32>r;
  let seen = i32x4.splat(-1);
  let m = f32x4.splat(SMALLEST);
  prepareRow(row);
  // A NaN need not show here: it comes back in the sum of exponentials.
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
  const mostAt = scratchBase + MOST_AT + (r << 2);
  const sumAt = scratchBase + SUM_AT + (r << 2);
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
    store<u32>(scratchBase + SEEN_AT + (r << 2), 1);
  }
  store<f32>(mostAt, most);
  if (before == most || before == SMALLEST) {
    store<f32>(sumAt, load<f32>(sumAt) + sum);
    return;
  }
  const factor = f32x4.extract_lane(exp4(f32x4.splat(before - most)), 0);
  store<f32>(sumAt, load<f32>(sumAt) * factor + sum);
  const f = f32x4.splat(factor);
  const out = scratchBase + OUT_AT + <usize>r * LD;
  for (let d = 0; d < dim; d += 4) {
    v128.store(out + (d << 2), f32x4.mul(v128.load(out + (d << 2)), f));
  }
}
