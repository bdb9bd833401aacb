// The WGSL kernel of the gradient of attention's mask. An invocation has one element of the mask
// and computes again the scores of all pairs that this element was added to, so the kernel needs no
// memory beside the gradient itself.

import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../view.js';
import type { KernelContext } from '../context.js';
import { defineKernel } from '../kernel.js';
import {
  ATTENTION_PARAMS,
  type AttentionPart,
  pairHelpers,
  pairParams,
  pairSpecOf,
  STRIDE_PARAMS,
} from './attention-pairs.js';
import { attentionInputs, idAliases } from './attention-tile.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';

const PARAMS = {
  ...ATTENTION_PARAMS,
  ...STRIDE_PARAMS,
  batches: 'u32',
  own_batches: 'u32',
  own_heads: 'u32',
  own_queries: 'u32',
  own_keys: 'u32',
  goes_on: 'u32',
  first_word: 'u32',
  words: 'u32',
  per_lane: 'u32',
} as const;

/**
 * Adds up the mask's gradient. `views` are q, k, v, dOut, stats, then mask and segments, if any.
 */
export function maskGradient(
  ctx: KernelContext,
  part: AttentionPart<KernelCalls['attentionMaskGradient']>,
  views: readonly View[],
): void {
  const { call, first, count } = part;
  const { numHeads, numQueries, numKeys, maskStrides } = call;
  const spec = { dtype: call.q.dtype, ...pairSpecOf(call) };
  const own = [count, numHeads, numQueries, numKeys].map((extent, axis) =>
    maskStrides[axis] === 0 ? 1 : extent,
  );
  const words = own.reduce((product, extent) => product * extent, 1);
  const key = `attention mask ${spec.dtype} ${spec.mask}${spec.hasSegments ? (spec.sharesIds ? ' segments' : ' two segments') : ''}${spec.hasDropout ? ' dropout' : ''}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        ...attentionInputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
        { name: 'd_mask', type: 'f32', access: 'read_write' },
      ],
      aliases: idAliases(spec),
      params: PARAMS,
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${pairHelpers(spec)}
fn slope_of(batch: u32, head: u32, query: u32, key: u32) -> f32 {
  if (!near(query, key)) { return 0.0; }
  let q_base = batch * P.q_batch + head * P.q_head + query * P.q_row;
  let k_base = batch * P.k_batch + head / P.group * P.k_head + key * P.k_row;
  let v_base = batch * P.v_batch + head / P.group * P.v_head + key * P.v_row;
  let out_base = ((batch * P.queries + query) * P.heads + head) * P.dim;
  var score = 0.0;
  var slope = 0.0;
  for (var d = 0u; d < P.dim; d++) {
    score = fma(P.scale * load_q(q_base + d), load_k(k_base + d), score);
    slope = fma(load_d_out(out_base + d), load_v(v_base + d), slope);
  }
  let pair = marked(score, batch, head, query, key);
  let row = ((batch + P.first_batch) * P.heads + head) * P.queries + query;
  let weight = exp_of(pair.x - load_stats(row));
  let gradient = weight * (kept(batch, head, query, key) * slope - load_stats(P.num_rows + row));
  return select(gradient, 0.0, pair.y == 0.0);
}
fn add_pairs(u: u32) {
  let own_key = u % P.own_keys;
  let own_query = u / P.own_keys % P.own_queries;
  let own_head = u / P.own_keys / P.own_queries % P.own_heads;
  let own_batch = u / P.own_keys / P.own_queries / P.own_heads;
  var sum = 0.0;
  if (P.goes_on != 0u) { sum = load_d_mask(u); }
  for (var batch = own_batch; batch < P.batches; batch += P.own_batches) {
    for (var head = own_head; head < P.heads; head += P.own_heads) {
      for (var query = own_query; query < P.queries; query += P.own_queries) {
        for (var key = own_key; key < P.keys; key += P.own_keys) {
          sum += slope_of(batch, head, query, key);
        }
      }
    }
  }
  store_d_mask(u, sum);
}
${elementwiseMain('add_pairs(P.first_word + u);')}`,
    }),
  );
  // Each element of the mask sums all pairs that it was added to, by two products of a head's row.
  const flopsOfWord = (4 * count * numHeads * numQueries * numKeys * call.dim) / words;
  const most = Math.max(1, Math.floor(ctx.profile.maxFlops / flopsOfWord));
  for (let firstWord = 0; firstWord < words; firstWord += most) {
    const numWords = Math.min(most, words - firstWord);
    const { grid, perLane } = elementwiseGrid(ctx, numWords);
    ctx.dispatch(compiled, {
      params: {
        ...pairParams(call, part),
        batches: count,
        own_batches: own[0]!,
        own_heads: own[1]!,
        own_queries: own[2]!,
        own_keys: own[3]!,
        goes_on: first > 0 && maskStrides[0] === 0 ? 1 : 0,
        first_word: firstWord,
        words: numWords,
        per_lane: perLane,
      },
      views: [...views, call.dMask],
      grid,
      flops: flopsOfWord * numWords,
    });
  }
}
