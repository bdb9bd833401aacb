// The kernels that run between the matrix products of attention-chunks.ts. They work on the rows of
// a chunk's scores: one turns scores into weights, the other into the scores' gradients.
//
// `npm run kernels -- --profile software attention weights x64` prints, among other lines:
//
//   for (var j = low + me; j < high; j += LANES) {
//     let pair = marked(load_s(base + j), batch, head, query, P.first_key + j);
//     ...
//     sum += weight;
//     store_s(base + j, weight);
//   }

import type { View } from '../../../../view.js';
import type { Binding } from '../../kernel/kernel.js';
import type { KernelContext } from '../../queue/context.js';
import { runRows } from '../rows/rows.js';
import {
  ATTENTION_PARAMS,
  type AttentionPart,
  pairHelpers,
  pairParams,
  pairSpecOf,
} from './attention-pairs.js';

/** The queries [row0, row0 + rows) and the keys [first, first + span) that they may see. */
export interface Chunk {
  readonly row0: number;
  readonly rows: number;
  readonly first: number;
  readonly span: number;
}

const CHUNK_PARAMS = { ...ATTENTION_PARAMS, row0: 'u32', chunk: 'u32', first_key: 'u32' } as const;

/**
 * WGSL that finds the batch, head and query of a row of scores, and the columns [low, high) that
 * the query's position lets it see.
 */
const PLACE = `
  let batch = row / P.chunk / P.heads;
  let head = row / P.chunk % P.heads;
  let query = P.row0 + row % P.chunk;
  let at = ((batch + P.first_batch) * P.heads + head) * P.queries + query;
  let end = P.first_key + P.cols;
  let low = clamp(key_start(query), P.first_key, end) - P.first_key;
  let high = clamp(key_end(query), P.first_key, end) - P.first_key;`;

const PAIR = 'let pair = marked(load_s(base + j), batch, head, query, P.first_key + j);';

/** Turns scores into weights after dropout, in place, and stores their log-sum-exps in stats. */
export function weigh(ctx: KernelContext, part: AttentionPart, chunk: Chunk, scores: View): void {
  rowsOfChunk(ctx, part, chunk, {
    name: 'attention weights',
    bindings: [
      { name: 's', type: 'f32', access: 'read_write' },
      { name: 'stats', type: 'f32', access: 'read_write' },
    ],
    views: [scores, part.call.stats],
    body: `
  var most = -inf();
  var seen = 0.0;
  for (var j = low + me; j < high; j += LANES) {
    ${PAIR}
    most = larger(most, pair.x);
    seen = max(seen, pair.y);
  }
  most = reduce_max(most, me);
  seen = reduce_max(seen, me);
  let shift = select(most, 0.0, is_lowest(most));
  var sum = 0.0;
  for (var j = low + me; j < high; j += LANES) {
    ${PAIR}
    let weight = select(0.0, exp_of(pair.x - shift), pair.y != 0.0);
    sum += weight;
    store_s(base + j, weight);
  }
  sum = reduce_add(sum, me);
  // A row whose scores are all -infinity has no largest one to take out.
  let is_lost = is_lowest(most);
  let inverse = select(0.0, select(1.0 / sum, nan(), is_lost), seen != 0.0);
  for (var j = me; j < P.cols; j += LANES) {
    let weight = load_s(base + j) * inverse * kept(batch, head, query, P.first_key + j);
    store_s(base + j, select(0.0, weight, j >= low && j < high));
  }
  if (me == 0u) {
    store_stats(at, select(-inf(), select(most + log_of(sum), nan(), is_lost), seen != 0.0));
  }`,
  });
}

/**
 * Turns scores into weights after dropout, and `slopes`, which holds the products of dOut and
 * values, into the scores' gradients, both in place.
 */
export function slope(
  ctx: KernelContext,
  part: AttentionPart,
  chunk: Chunk,
  { scores, slopes }: { readonly scores: View; readonly slopes: View },
): void {
  rowsOfChunk(ctx, part, chunk, {
    name: 'attention slopes',
    bindings: [
      { name: 'stats', type: 'f32', access: 'read' },
      { name: 's', type: 'f32', access: 'read_write' },
      { name: 'd', type: 'f32', access: 'read_write' },
    ],
    views: [part.call.stats, scores, slopes],
    body: `
  let lse = load_stats(at);
  let delta = load_stats(P.num_rows + at);
  for (var j = me; j < P.cols; j += LANES) {
    ${PAIR}
    let sees = j >= low && j < high && pair.y != 0.0;
    let weight = exp_of(pair.x - lse);
    let keep = kept(batch, head, query, P.first_key + j);
    store_d(base + j, select(0.0, weight * (keep * load_d(base + j) - delta), sees));
    store_s(base + j, select(0.0, weight * keep, sees));
  }`,
  });
}

function rowsOfChunk(
  ctx: KernelContext,
  part: AttentionPart,
  chunk: Chunk,
  options: {
    readonly name: string;
    readonly bindings: readonly Binding[];
    readonly views: readonly View[];
    readonly body: string;
  },
): void {
  const { call } = part;
  const spec = pairSpecOf(call);
  const { mask, querySegments, keySegments } = call;
  const read = (name: string, type: Binding['type']): Binding => ({ name, type, access: 'read' });
  runRows(ctx, {
    key: `${options.name}${mask ? ` mask ${mask.dtype}` : ''}${keySegments ? ' segments' : ''}${spec.hasDropout ? ' dropout' : ''}`,
    rows: part.count * call.numHeads * chunk.rows,
    cols: chunk.span,
    bindings: [
      ...options.bindings,
      ...(mask ? [read('mask', mask.dtype)] : []),
      ...(keySegments ? [read('query_ids', 'raw'), read('key_ids', 'raw')] : []),
    ],
    params: CHUNK_PARAMS,
    helpers: pairHelpers(spec),
    body: `${PLACE}${options.body}`,
    values: {
      ...pairParams(call, part),
      row0: chunk.row0,
      chunk: chunk.rows,
      first_key: chunk.first,
    },
    views: [
      ...options.views,
      ...[mask, querySegments, keySegments].filter((view) => view !== undefined),
    ],
  });
}
