// The float64 twin of attention computes whole matrices of scores, from separate operands or from
// operands that are packed in rows.

import { dropoutTwin, type TwinMask } from './dropout.js';
import { elementAt, type TwinArray } from './twin-array.js';

export interface AttentionTwinOptions {
  readonly isCausal?: boolean;
  readonly window?: number;
  readonly queryOffset?: number;
  /** The documents' ids of the keys [batch, keys], and below of the queries [batch, queries]. */
  readonly segments?: TwinArray;
  readonly querySegments?: TwinArray;
  readonly mask?: TwinArray;
  readonly scale?: number;
  readonly dropped?: TwinMask | undefined;
}

/**
 * Returns attention in the shape of q, [batch, queries, heads, dim]. k and v are [batch, keys,
 * kvHeads, dim].
 */
export function attentionTwin(
  q: TwinArray,
  k: TwinArray,
  v: TwinArray,
  options: AttentionTwinOptions,
): TwinArray {
  const [batch, queries, heads, dim] = q.shape as [number, number, number, number];
  const [, keys, kvHeads] = k.shape as [number, number, number];
  const group = heads / kvHeads;
  const { scale = 1 / Math.sqrt(dim), segments, querySegments, mask, dropped } = options;
  const offset = options.queryOffset ?? keys - queries;
  const sees = (b: number, t: number, s: number): boolean => {
    const away = offset + t - s;
    const isNear = options.window === undefined || Math.abs(away) < options.window;
    const isBehind = options.isCausal !== true || away >= 0;
    const id = segments && elementAt(segments, [b, s]);
    const own = querySegments ?? segments;
    const at = querySegments === undefined ? offset + t : t;
    return isNear && isBehind && id === (own && elementAt(own, [b, at]));
  };
  const shape = [batch, heads, queries, keys];
  const weights = new Float64Array(batch * heads * queries * keys);
  for (let row = 0; row < batch * heads * queries; row++) {
    const t = row % queries;
    const h = Math.floor(row / queries) % heads;
    const b = Math.floor(row / queries / heads);
    let total = 0;
    for (let s = 0; s < keys; s++) {
      const added = mask === undefined ? 0 : elementAt(mask, [b, h, t, s]);
      if (!sees(b, t, s) || added === Number.NEGATIVE_INFINITY) {
        continue;
      }
      let score = 0;
      for (let d = 0; d < dim; d++) {
        score += elementAt(q, [b, t, h, d]) * elementAt(k, [b, s, Math.floor(h / group), d]);
      }
      weights[row * keys + s] = Math.exp(score * scale + added);
      total += weights[row * keys + s]!;
    }
    for (let s = 0; s < keys && total > 0; s++) {
      weights[row * keys + s]! /= total;
    }
  }
  const used =
    dropped === undefined ? weights : dropoutTwin({ shape, data: weights }, dropped).data;
  const data = q.data.map((_, i) => {
    const d = i % dim;
    const h = Math.floor(i / dim) % heads;
    const t = Math.floor(i / dim / heads) % queries;
    const b = Math.floor(i / dim / heads / queries);
    let sum = 0;
    for (let s = 0; s < keys; s++) {
      const weight = used[((b * heads + h) * queries + t) * keys + s]!;
      sum += weight * elementAt(v, [b, s, Math.floor(h / group), d]);
    }
    return sum;
  });
  return { shape: q.shape, data };
}

/**
 * Returns the columns [start, start + heads * dim) of [batch, seq, width], as [batch, seq, heads,
 * dim].
 */
export function headsTwin(
  rows: TwinArray,
  { start, heads, dim }: { readonly start: number; readonly heads: number; readonly dim: number },
): TwinArray {
  const [batch, seq, width] = rows.shape as [number, number, number];
  const columns = heads * dim;
  const data = Float64Array.from(
    { length: batch * seq * columns },
    (_, i) => rows.data[Math.floor(i / columns) * width + start + (i % columns)]!,
  );
  return { shape: [batch, seq, heads, dim], data };
}
