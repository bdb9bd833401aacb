// The WGSL kernel of the gradient of attention's mask. An element of a mask that is broadcast was
// added to the scores of many pairs, up to all of them. Lanes share these: each computes the scores
// of some pairs again and leaves one part of the element's sum, so the kernel needs no memory
// beside the parts. Which pairs a part has depends on the shapes alone.
//
// The mask [1, 12, 1, 1] over 8 batches and 1,024 tokens of dimension 64 has 12 elements, each of
// 8,192 rows of pairs (a row is a query's) with 1,024 keys. Its parts are half a row: 16,384 parts.
//
// `npm run kernels -- attention mask f32 f32` prints, among other lines:
//
//   for (var d = 0u; d < P.dim; d++) {
//     score = fma(P.scale * load_q(q_base + d), load_k(k_base + d), score);
//     slope = fma(load_d_out(out_base + d), load_v(v_base + d), slope);
//   }

import type { DType } from '@shardweave/dtypes';
import type { AttentionOperands } from '../../../../kernel-calls/attention.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel, type Kernel, linearGrid } from '../../kernel/kernel.js';
import { LOAD_NS } from '../../kernel/lane-time.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { ELEMENTWISE_SIZE } from '../elementwise/elementwise.js';
import { reduceInto } from '../rows/reduce.js';
import {
  ATTENTION_PARAMS,
  type AttentionPart,
  type PairSpec,
  pairHelpers,
  pairParams,
  pairSpecOf,
  STRIDE_PARAMS,
} from './attention-pairs.js';
import { attentionInputs, idAliases } from './attention-tile.js';

type MaskCall = KernelCalls['attentionMaskGradient'];

/**
 * The dimensions of pairs that a lane multiplies, by model in 4 ms. With fewer the parts would be
 * more: at 8,192 tokens those of one sum are 50 MB.
 */
const LANE_STEPS = 2 ** 15;
/** A step loads from q, k, dOut and v. */
const STEP_NS = 4 * LOAD_NS;

const PARAMS = {
  ...ATTENTION_PARAMS,
  ...STRIDE_PARAMS,
  own_heads: 'u32',
  own_queries: 'u32',
  own_keys: 'u32',
  own_words: 'u32',
  word_heads: 'u32',
  word_queries: 'u32',
  word_keys: 'u32',
  part_rows: 'u32',
  part_keys: 'u32',
  key_parts: 'u32',
  first_part: 'u32',
  first_row: 'u32',
  end_row: 'u32',
  lanes: 'u32',
  groups: 'u32',
} as const;

/** How the sums over pairs are cut. */
interface MaskCut {
  /** The extents of the mask itself: 1 where it is broadcast. */
  readonly own: readonly [batches: number, heads: number, queries: number, keys: number];
  readonly words: number;
  /** The rows of pairs of an element in one batch, and the keys of a row. */
  readonly rowsOfBatch: number;
  readonly keys: number;
  /** The rows and keys of a part, and the numbers of parts. */
  readonly partRows: number;
  readonly partKeys: number;
  readonly rowParts: number;
  readonly keyParts: number;
}

function cutOf({ batch, numHeads, numQueries, numKeys, dim, maskStrides }: MaskCall): MaskCut {
  const extents = [batch, numHeads, numQueries, numKeys];
  const own = extents.map((extent, axis) =>
    maskStrides[axis] === 0 ? 1 : extent,
  ) as unknown as MaskCut['own'];
  const rowsOfBatch = (numHeads / own[1]) * (numQueries / own[2]);
  const rows = (batch / own[0]) * rowsOfBatch;
  const keys = numKeys / own[3];
  const most = Math.max(1, Math.floor(LANE_STEPS / dim));
  const partKeys = Math.ceil(keys / Math.ceil(keys / most));
  const partRows = Math.min(rows, Math.max(1, Math.floor(most / partKeys)));
  return {
    own,
    words: own[0] * own[1] * own[2] * own[3],
    rowsOfBatch,
    keys,
    partRows,
    partKeys,
    rowParts: Math.ceil(rows / partRows),
    keyParts: Math.ceil(keys / partKeys),
  };
}

/** Where lanes leave their sums, and what each of them sums. */
export interface MaskParts {
  readonly cut: MaskCut;
  readonly to: View;
}

/**
 * Runs `body`, whose calls of `maskGradient` sum the parts of all batches of `call`. Where a lane
 * takes an element whole, they are the gradient itself.
 */
export function withMaskParts(
  ctx: KernelContext,
  call: MaskCall,
  body: (parts: MaskParts) => void,
): void {
  const cut = cutOf(call);
  const numParts = cut.rowParts * cut.keyParts;
  if (numParts === 1) {
    body({ cut, to: call.dMask });
    return;
  }
  ctx.withScratch('f32', numParts * cut.words, (to) => {
    body({ cut, to });
    const out = sliceView(call.dMask, 0, cut.words);
    reduceInto(ctx, { kind: 'sum', x: to, out, outer: 1, dim: numParts, inner: cut.words });
  });
}

/**
 * Adds to the parts the pairs of these batches, of which `firstBatch` come before in the parts.
 * `views` are q, k, v, dOut, stats, then mask and segments, if any.
 */
export function maskGradient(
  ctx: KernelContext,
  { call, first, count, numRows }: AttentionPart<AttentionOperands>,
  options: {
    readonly parts: MaskParts;
    readonly firstBatch: number;
    readonly views: readonly View[];
  },
): void {
  const { numHeads, numQueries, numKeys, dim } = call;
  const { cut, to } = options.parts;
  const { own, words, partRows, partKeys, keyParts } = cut;
  const firstRow = options.firstBatch * cut.rowsOfBatch;
  const endRow = firstRow + (count / own[0]) * cut.rowsOfBatch;
  const firstPart = Math.floor(firstRow / partRows);
  const lanes = words * keyParts * (Math.ceil(endRow / partRows) - firstPart);
  const grid = linearGrid(Math.ceil(lanes / ELEMENTWISE_SIZE[0]));
  const spec = { dtype: call.q.dtype, ...pairSpecOf(call) };
  const key = `attention mask ${spec.dtype} ${spec.mask}${spec.hasSegments ? (spec.sharesIds ? ' segments' : ' two segments') : ''}${spec.hasDropout ? ' dropout' : ''}`;
  ctx.dispatch(
    ctx.kernel(key, () => maskKernel(key, spec)),
    {
      params: {
        ...pairParams(call, { first, numRows }),
        own_heads: own[1],
        own_queries: own[2],
        own_keys: own[3],
        own_words: words,
        word_heads: numHeads / own[1],
        word_queries: numQueries / own[2],
        word_keys: cut.keys,
        part_rows: partRows,
        part_keys: partKeys,
        key_parts: keyParts,
        first_part: firstPart,
        first_row: firstRow,
        end_row: endRow,
        lanes,
        groups: grid[0],
      },
      views: [...options.views, to],
      grid,
      flops: 4 * count * numHeads * numQueries * numKeys * dim,
      laneNs: partRows * partKeys * dim * STEP_NS,
    },
  );
}

function maskKernel(label: string, spec: PairSpec & { readonly dtype: DType }): Kernel {
  return defineKernel({
    label,
    bindings: [
      ...attentionInputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
      { name: 'parts', type: 'f32', access: 'read_write' },
    ],
    aliases: idAliases(spec),
    params: PARAMS,
    workgroupSize: ELEMENTWISE_SIZE,
    isCuttable: true,
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
// Lane i runs over [row parts of these batches, key parts, elements of the mask].
fn add_part(i: u32) {
  let part = i / P.own_words;
  let u = i - part * P.own_words;
  let own_key = u % P.own_keys;
  let own_query = u / P.own_keys % P.own_queries;
  let own_head = u / P.own_keys / P.own_queries % P.own_heads;
  let own_batch = u / P.own_keys / P.own_queries / P.own_heads;
  let begin = (P.first_part + part / P.key_parts) * P.part_rows;
  let end = min(begin + P.part_rows, P.end_row);
  let first_key = part % P.key_parts * P.part_keys;
  let end_key = min(first_key + P.part_keys, P.word_keys);
  let to = P.first_part * P.key_parts * P.own_words + i;
  var sum = 0.0;
  if (begin < P.first_row) { sum = load_parts(to); }
  for (var row = max(begin, P.first_row); row < end; row++) {
    let here = row - P.first_row;
    let query = own_query + here % P.word_queries;
    let head = own_head + here / P.word_queries % P.word_heads;
    let batch = own_batch + here / P.word_queries / P.word_heads;
    for (var key = first_key; key < end_key; key++) {
      sum += slope_of(batch, head, query, own_key + key);
    }
  }
  store_parts(to, sum);
}
@compute @workgroup_size(${ELEMENTWISE_SIZE.join(', ')})
fn main(
  @builtin(workgroup_id) group_here: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let group = group_here + first_group();
  let i = (group.y * P.groups + group.x) * ${ELEMENTWISE_SIZE[0]}u + lane;
  if (i < P.lanes) { add_part(i); }
}`,
  });
}
