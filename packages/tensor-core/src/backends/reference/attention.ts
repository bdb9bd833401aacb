// Attention and its gradients, computed for one query's row of scores at a time.

import type { AttentionOperands, HeadStrides } from '../../kernel-calls/attention.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { keptBy } from './dropout.js';
import { type Elements, type Open, valuesOf } from './elements.js';

/** One query's row of scores. */
interface Row {
  readonly batch: number;
  readonly head: number;
  readonly kvHead: number;
  readonly query: number;
  /** The row's number among [batch, numHeads, numQueries]. */
  readonly index: number;
  /** The keys that the query sees, in ascending order, and below their scores. */
  readonly keys: readonly number[];
  readonly scores: readonly number[];
}

export function attention(call: KernelCalls['attention'], open: Open): void {
  const { dim } = call;
  const v = valuesOf(open(call.v));
  const [out, stats] = [open(call.out), open(call.stats)];
  const keep = keepOf(call);
  for (const row of rowsOf(call, open)) {
    const { scores, keys } = row;
    const most = scores.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const sum = scores.reduce((total, score) => total + Math.exp(score - most), 0);
    stats.set(row.index, keys.length === 0 ? Number.NEGATIVE_INFINITY : most + Math.log(sum));
    const result = new Float64Array(dim);
    keys.forEach((key, i) => {
      const weight = (Math.exp(scores[i]! - most) / sum) * keep(row.index, key);
      const at = startOf(call.vStrides, row.batch, row.kvHead, key);
      for (let d = 0; d < dim; d++) {
        result[d]! += weight * v[at + d]!;
      }
    });
    const at = outStart(call, row);
    result.forEach((value, d) => {
      out.set(at + d, value);
    });
  }
}

export function attentionBackward(call: KernelCalls['attentionBackward'], open: Open): void {
  const { dim, scale } = call;
  const [q, k, v] = [valuesOf(open(call.q)), valuesOf(open(call.k)), valuesOf(open(call.v))];
  const [out, dOut, stats] = [open(call.out), open(call.dOut), open(call.stats)];
  const [dq, dk, dv] = [new Sums(call.dq.size), new Sums(call.dk.size), new Sums(call.dv.size)];
  const keep = keepOf(call);
  for (const row of rowsOf(call, open)) {
    const { batch, head, kvHead, query } = row;
    const from = outStart(call, row);
    const slope = Float64Array.from({ length: dim }, (_, d) => dOut.get(from + d));
    const along = slope.reduce((total, value, d) => total + value * out.get(from + d), 0);
    stats.set(call.stats.size / 2 + row.index, along);
    const qAt = startOf(call.qStrides, batch, head, query);
    row.keys.forEach((key, i) => {
      const weight = Math.exp(row.scores[i]! - stats.get(row.index));
      const kept = keep(row.index, key);
      const kAt = startOf(call.kStrides, batch, kvHead, key);
      const vAt = startOf(call.vStrides, batch, kvHead, key);
      let dWeight = 0;
      for (let d = 0; d < dim; d++) {
        dWeight += slope[d]! * v[vAt + d]!;
        dv.add(vAt + d, weight * kept * slope[d]!);
      }
      const dScore = scale * weight * (dWeight * kept - along);
      for (let d = 0; d < dim; d++) {
        dq.add(qAt + d, dScore * k[kAt + d]!);
        dk.add(kAt + d, dScore * q[qAt + d]!);
      }
    });
  }
  const { numHeads, numKvHeads, numQueries, numKeys } = call;
  storeRows(call, { sums: dq, to: open(call.dq) }, call.qStrides, [numHeads, numQueries]);
  storeRows(call, { sums: dk, to: open(call.dk) }, call.kStrides, [numKvHeads, numKeys]);
  storeRows(call, { sums: dv, to: open(call.dv) }, call.vStrides, [numKvHeads, numKeys]);
}

export function attentionMaskGradient(
  call: KernelCalls['attentionMaskGradient'],
  open: Open,
): void {
  const v = valuesOf(open(call.v));
  const [dOut, stats, dMask] = [open(call.dOut), open(call.stats), open(call.dMask)];
  const sums = new Sums(call.dMask.size);
  const keep = keepOf(call);
  const [maskBatch, maskHead, maskRow, maskColumn] = call.maskStrides;
  for (const row of rowsOf(call, open)) {
    const { batch, head, kvHead, query, index } = row;
    const from = outStart(call, row);
    const along = stats.get(call.stats.size / 2 + index);
    row.keys.forEach((key, i) => {
      const weight = Math.exp(row.scores[i]! - stats.get(index));
      const vAt = startOf(call.vStrides, batch, kvHead, key);
      let dWeight = 0;
      for (let d = 0; d < call.dim; d++) {
        dWeight += dOut.get(from + d) * v[vAt + d]!;
      }
      const at = batch * maskBatch + head * maskHead + query * maskRow + key * maskColumn;
      sums.add(at, weight * (dWeight * keep(index, key) - along));
    });
  }
  sums.values.forEach((value, i) => {
    dMask.set(i, value);
  });
}

/** The elements of a view, to which gradients are added in float64. */
class Sums {
  readonly values: Float64Array;

  constructor(size: number) {
    this.values = new Float64Array(size);
  }

  add(at: number, value: number): void {
    this.values[at]! += value;
  }
}

/** Stores only the rows of an operand, since what lies between them may belong to another one. */
function storeRows(
  { batch, dim }: AttentionOperands,
  { sums, to }: { readonly sums: Sums; readonly to: Elements },
  strides: HeadStrides,
  [heads, count]: readonly [number, number],
): void {
  for (let b = 0; b < batch; b++) {
    for (let head = 0; head < heads; head++) {
      for (let i = 0; i < count; i++) {
        const at = startOf(strides, b, head, i);
        for (let d = 0; d < dim; d++) {
          to.set(at + d, sums.values[at + d]!);
        }
      }
    }
  }
}

function* rowsOf(call: AttentionOperands, open: Open): Generator<Row> {
  const { batch, numHeads, numKvHeads, numQueries, numKeys, dim, scale } = call;
  const [q, k] = [valuesOf(open(call.q)), valuesOf(open(call.k))];
  const mask = call.mask && open(call.mask);
  const [ofQuery, ofKey] = [call.querySegments, call.keySegments].map((view) => view && open(view));
  const [maskBatch, maskHead, maskRow, maskColumn] = call.maskStrides;
  for (let b = 0; b < batch; b++) {
    for (let head = 0; head < numHeads; head++) {
      const kvHead = Math.floor(head / (numHeads / numKvHeads));
      for (let query = 0; query < numQueries; query++) {
        const keys: number[] = [];
        const scores: number[] = [];
        const qAt = startOf(call.qStrides, b, head, query);
        const maskAt = b * maskBatch + head * maskHead + query * maskRow;
        for (let key = 0; key < numKeys; key++) {
          const added = mask?.get(maskAt + key * maskColumn) ?? 0;
          const isOwn = ofQuery?.get(b * numQueries + query) === ofKey?.get(b * numKeys + key);
          if (!isOwn || added === Number.NEGATIVE_INFINITY || !isNear(call, query, key)) {
            continue;
          }
          const kAt = startOf(call.kStrides, b, kvHead, key);
          let product = 0;
          for (let d = 0; d < dim; d++) {
            product += q[qAt + d]! * k[kAt + d]!;
          }
          keys.push(key);
          scores.push(product * scale + added);
        }
        const index = (b * numHeads + head) * numQueries + query;
        yield { batch: b, head, kvHead, query, index, keys, scores };
      }
    }
  }
}

/** Whether positions alone let the query see the key. */
function isNear(call: AttentionOperands, query: number, key: number): boolean {
  const away = call.queryOffset + query - key;
  return (!call.isCausal || away >= 0) && (call.window === 0 || Math.abs(away) < call.window);
}

/** Returns a function that gives the factor of a weight, which is 0 where the weight is dropped. */
function keepOf(call: AttentionOperands): (row: number, key: number) => number {
  const { dropout, numKeys } = call;
  if (dropout === undefined) {
    return () => 1;
  }
  const isKept = keptBy(dropout);
  return (row, key) => (isKept(row * numKeys + key) ? 1 / (1 - dropout.p) : 0);
}

function startOf(strides: HeadStrides, batch: number, head: number, row: number): number {
  return batch * strides.batch + head * strides.head + row * strides.row;
}

function outStart({ numHeads, numQueries, dim }: AttentionOperands, row: Row): number {
  return ((row.batch * numQueries + row.query) * numHeads + row.head) * dim;
}
