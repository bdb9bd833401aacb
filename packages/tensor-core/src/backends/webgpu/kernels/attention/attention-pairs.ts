// WGSL functions on pairs of a query and a key, which all kernels of attention share: whether the
// pair sees each other, what the mask adds to its score, and what dropout leaves of its weight.
//
// `npm run kernels -- attention f32 wide 64x8x2` prints, among other lines:
//
//   fn key_end(query: u32) -> u32 {
//     let at = i32(query) + P.query_offset;
//     let open_end = select(i32(P.keys), at + P.window, P.window != 0);
//     return u32(clamp(select(open_end, at + 1, P.causal != 0u), 0, i32(P.keys)));
//   }

import type { DType } from '@shardweave/dtypes';
import type { AttentionOperands } from '../../../../kernel-calls/attention.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { isSameView } from '../../queue/context.js';
import { PHILOX_WORDS } from '../elementwise/dropout.js';

/** A call whose operands are cut to `count` of its batches, from number `first` on. */
export interface AttentionPart<Call extends AttentionOperands = KernelCalls['attentionBackward']> {
  readonly call: Call;
  readonly first: number;
  readonly count: number;
  /** The rows of all batches of the whole call, which is half the size of stats. */
  readonly numRows: number;
}

/** What the text of these functions depends on. */
export interface PairSpec {
  readonly mask: DType | undefined;
  readonly hasSegments: boolean;
  /**
   * Whether queries and keys have one tensor of ids, which takes one of the eight storage buffers
   * that every device allows.
   */
  readonly sharesIds: boolean;
  readonly hasDropout: boolean;
}

export function sharesIds({ querySegments, keySegments }: AttentionOperands): boolean {
  return (
    querySegments !== undefined &&
    keySegments !== undefined &&
    isSameView(querySegments, keySegments)
  );
}

export function pairSpecOf(call: AttentionOperands): PairSpec {
  return {
    mask: call.mask?.dtype,
    hasSegments: call.keySegments !== undefined,
    sharesIds: sharesIds(call),
    hasDropout: call.dropout !== undefined,
  };
}

/** The parameters that all kernels of attention have. */
export const ATTENTION_PARAMS = {
  first_batch: 'u32',
  dim: 'u32',
  heads: 'u32',
  group: 'u32',
  queries: 'u32',
  keys: 'u32',
  scale: 'f32',
  causal: 'u32',
  window: 'i32',
  query_offset: 'i32',
  mask_batch: 'u32',
  mask_head: 'u32',
  mask_row: 'u32',
  mask_column: 'u32',
  threshold: 'u32',
  kept_scale: 'f32',
  num_rows: 'u32',
  key0: 'u32',
  key1: 'u32',
  counter_low: 'u32',
  counter_high: 'u32',
} as const;

/** Strides of queries, keys and values in elements, for kernels that read them where they lie. */
export const STRIDE_PARAMS = {
  q_batch: 'u32',
  q_head: 'u32',
  q_row: 'u32',
  k_batch: 'u32',
  k_head: 'u32',
  k_row: 'u32',
  v_batch: 'u32',
  v_head: 'u32',
  v_row: 'u32',
} as const;

/** The values of ATTENTION_PARAMS and STRIDE_PARAMS for a part of a call; see AttentionPart. */
export function pairParams(
  call: AttentionOperands,
  { first, numRows }: { readonly first: number; readonly numRows: number },
): Record<keyof typeof ATTENTION_PARAMS | keyof typeof STRIDE_PARAMS, number> {
  const { dropout, maskStrides, qStrides: q, kStrides: k, vStrides: v } = call;
  const counter = dropout?.counterOffset ?? 0;
  return {
    first_batch: first,
    dim: call.dim,
    num_rows: numRows,
    heads: call.numHeads,
    group: call.numHeads / call.numKvHeads,
    queries: call.numQueries,
    keys: call.numKeys,
    scale: call.scale,
    causal: call.isCausal ? 1 : 0,
    window: call.window,
    query_offset: call.queryOffset,
    mask_batch: maskStrides[0],
    mask_head: maskStrides[1],
    mask_row: maskStrides[2],
    mask_column: maskStrides[3],
    threshold: Math.floor((dropout?.p ?? 0) * 2 ** 32),
    kept_scale: 1 / (1 - (dropout?.p ?? 0)),
    key0: dropout?.key0 ?? 0,
    key1: dropout?.key1 ?? 0,
    counter_low: counter % 2 ** 32,
    counter_high: Math.floor(counter / 2 ** 32),
    q_batch: q.batch,
    q_head: q.head,
    q_row: q.row,
    k_batch: k.batch,
    k_head: k.head,
    k_row: k.row,
    v_batch: v.batch,
    v_head: v.head,
    v_row: v.row,
  };
}

/** Returns the WGSL functions that this file describes. */
export function pairHelpers(spec: PairSpec): string {
  const { mask, hasSegments, hasDropout } = spec;
  return `fn near(query: u32, key: u32) -> bool {
  let away = i32(query) + P.query_offset - i32(key);
  return query < P.queries && key < P.keys && (P.causal == 0u || away >= 0) && (P.window == 0 || abs(away) < P.window);
}
// First key that the query's position lets it see, and one more than the last.
fn key_start(query: u32) -> u32 {
  let at = select(0, i32(query) + P.query_offset - P.window + 1, P.window != 0);
  return u32(clamp(at, 0, i32(P.keys)));
}
fn key_end(query: u32) -> u32 {
  let at = i32(query) + P.query_offset;
  let open_end = select(i32(P.keys), at + P.window, P.window != 0);
  return u32(clamp(select(open_end, at + 1, P.causal != 0u), 0, i32(P.keys)));
}
// The same for queries that see the key.
fn query_start(key: u32) -> u32 {
  let at = i32(key) - P.query_offset;
  let open_start = select(0, at - P.window + 1, P.window != 0);
  return u32(clamp(select(open_start, at, P.causal != 0u), 0, i32(P.queries)));
}
fn query_end(key: u32) -> u32 {
  let at = i32(key) - P.query_offset + P.window;
  return u32(clamp(select(i32(P.queries), at, P.window != 0), 0, i32(P.queries)));
}
// The score with the mask in x; y is 0 where segments or mask hide the key.
fn marked(s: f32, batch: u32, head: u32, query: u32, key: u32) -> vec2<f32> {
  ${hasSegments ? 'if (load_query_ids(batch * P.queries + query) != load_key_ids(batch * P.keys + key)) { return vec2<f32>(-inf(), 0.0); }' : ''}
  ${
    mask === undefined
      ? 'return vec2<f32>(s, 1.0);'
      : `let added = load_mask(batch * P.mask_batch + head * P.mask_head + query * P.mask_row + key * P.mask_column);
  return select(vec2<f32>(s + added, 1.0), vec2<f32>(-inf(), 0.0), is_lowest(added));`
  }
}
${hasDropout ? `${PHILOX_WORDS}${KEPT}` : 'fn kept(batch: u32, head: u32, query: u32, key: u32) -> f32 { return 1.0; }'}`;
}

/**
 * WGSL of the factor by which dropout multiplies a weight. The weight's number in [batch, head,
 * query, key] picks its word of the generator; it may exceed 32 bits, so it is counted in 64.
 */
const KEPT = `
fn word_of(batch: u32, head: u32, query: u32, key: u32) -> vec2<u32> {
  let row = ((batch + P.first_batch) * P.heads + head) * P.queries + query;
  var low = row * P.keys;
  var high = high_product(row, P.keys);
  low += P.counter_low;
  high += P.counter_high + select(0u, 1u, low < P.counter_low);
  low += key;
  high += select(0u, 1u, low < key);
  return vec2<u32>(low, high);
}
fn kept(batch: u32, head: u32, query: u32, key: u32) -> f32 {
  let at = word_of(batch, head, query, key);
  let word = philox((at.x >> 2u) | (at.y << 30u), at.y >> 2u)[at.x & 3u];
  return select(0.0, P.kept_scale, word >= P.threshold);
}`;
