// Attention in linear memory: the weights are never stored, backward computes them again from the
// log-sum-exp of each row. Heads are read and written where they lie in wider rows, through
// strides.

import { checkOptions } from '../check-options.js';
import { OptionError, ShapeError } from '../errors.js';
import type { AttentionOperands } from '../kernel-calls/attention.js';
import { atLeast, FLAG, type OptionRules, whole } from '../options.js';
import { elementCountOf, isTensor, type Tensor } from '../tensor.js';
import type { View } from '../view.js';
import {
  type AttentionRows,
  areApart,
  checkLayouts,
  headsOf,
  type Layout,
  type Layouts,
  layoutOf,
  viewOf,
  widthOf,
} from './attention-heads.js';
import { cast } from './cast.js';
import {
  broadcastStrides,
  requireFloat,
  requireInteger,
  requireSameDevice,
  shapeText,
} from './checks.js';
import { nextMask } from './dropout.js';
import { slice } from './shape.js';

const NAME = 'scaledDotProductAttention';

/**
 * Options of scaledDotProductAttention: which keys a query sees, what is added to its scores, and
 * dropout.
 */
export interface AttentionOptions {
  /** Whether a query sees no key at a position after its own. The default is false. */
  readonly isCausal?: boolean;
  /** How many positions away keys must be fewer than to be seen. By default there is no limit. */
  readonly window?: number;
  /** The first query's position among the keys. The default is keys - queries. */
  readonly queryOffset?: number;
  /**
   * The ids [batch, keys] (i32, u32) of documents that are packed in a row, so that a query sees
   * only keys of its own document. A query's document is that of the key at its position, unless
   * `querySegments` names it: [[0, 0, 1]] is two tokens of one document and one of another.
   */
  readonly segments?: Tensor;
  /** The documents' ids [batch, queries] of the queries, which need `segments` beside them. */
  readonly querySegments?: Tensor;
  /**
   * Floats that are added to the scaled scores and broadcast to [batch, heads, queries, keys].
   * -Infinity hides a key from a query.
   */
  readonly mask?: Tensor;
  /** The factor of scores. The default is 1 / sqrt(headDim). */
  readonly scale?: number;
  /** The probability of dropping an attention weight. The default is 0. */
  readonly dropout?: number;
}

const TENSOR = { expected: 'a tensor', holds: isTensor };
const RULES: OptionRules<AttentionOptions> = {
  isCausal: FLAG,
  window: whole(1),
  queryOffset: { expected: 'a whole number', holds: Number.isSafeInteger },
  segments: TENSOR,
  querySegments: TENSOR,
  mask: TENSOR,
  scale: { expected: 'a finite number', holds: Number.isFinite },
  dropout: atLeast(0),
};

const CAUSAL_RULES = { numHeads: whole(1), dropout: atLeast(0), segments: TENSOR };

/**
 * softmax(scale * q k^T + mask) v for each head (Vaswani et al., 2017), in memory linear in the
 * number of rows (Dao, "FlashAttention-2", 2023). Keys and values may have fewer heads than
 * queries, which then share them in groups of consecutive heads. A query that sees no key gets 0,
 * and no gradients.
 * @param q [batch, queries, heads, headDim], or heads of a wider tensor
 * @param k [batch, keys, kvHeads, headDim] @param v as k
 * @returns as q: [batch, queries, heads, headDim], or [batch, queries, heads * headDim] for heads
 * Saves q, k, v, the result and two f32 a row and head.
 */
export function scaledDotProductAttention(
  q: AttentionRows,
  k: AttentionRows,
  v: AttentionRows,
  options: AttentionOptions = {},
): Tensor {
  checkOptions<AttentionOptions>(NAME, options, RULES);
  const rows = [layoutOf(NAME, q), layoutOf(NAME, k), layoutOf(NAME, v)] as const;
  const { device } = rows[0].tensor;
  return device.scope(() => attend(rows, options, !isTensor(q)));
}

/**
 * Causal attention of packed queries, keys and values to themselves.
 * @param qkv [batch, seq, 3 * dim]: queries, keys, values, each numHeads heads side by side
 * @param options.dropout probability of dropping an attention weight. Default 0.
 * @param options.segments [batch, seq]; see AttentionOptions
 * @returns [batch, seq, dim]
 */
export function causalSelfAttention(
  qkv: Tensor,
  options: {
    readonly numHeads: number;
    readonly dropout?: number;
    readonly segments?: Tensor;
  },
): Tensor {
  checkOptions<typeof options>('causalSelfAttention', options, CAUSAL_RULES);
  const { numHeads, dropout, segments } = options;
  const dim = (qkv.shape[2] ?? 0) / 3;
  const headDim = dim / numHeads;
  if (qkv.rank !== 3 || !Number.isInteger(headDim)) {
    throw new ShapeError(
      `causalSelfAttention: expected qkv [batch, seq, 3 * ${numHeads} * headDim], got ${shapeText(qkv.shape)}. Queries, keys and values lie side by side.`,
    );
  }
  const part = (i: number) => headsOf(qkv, { numHeads, headDim, start: i * dim });
  return scaledDotProductAttention(part(0), part(1), part(2), {
    isCausal: true,
    ...(dropout === undefined ? {} : { dropout }),
    ...(segments === undefined ? {} : { segments }),
  });
}

/** Runs and records the op, in a scope that frees what no graph needs. */
function attend(layouts: Layouts, options: AttentionOptions, isMerged: boolean): Tensor {
  const [q, k] = layouts;
  const { mask, segments, isCausal = false, window = 0 } = options;
  checkLayouts(NAME, layouts);
  const { device, dtype } = q.tensor;
  const { batch, rows: queries, heads, headDim } = q;
  const merged = [batch, queries, heads * headDim];
  const shape = isMerged ? merged : [batch, queries, heads, headDim];
  const out = device.empty(shape, { dtype });
  const stats = device.empty([2, batch, heads, queries]);
  const scores = [batch, heads, queries, k.rows];
  const masked = { device, shape: scores, size: elementCountOf(scores) };
  const dropped = nextMask(NAME, masked, options.dropout ?? 0);
  const extra = checkExtra(layouts, options);
  const scale = options.scale ?? 1 / Math.sqrt(headDim);
  const operands = (): AttentionOperands => ({
    q: viewOf(q.tensor, q),
    k: viewOf(k.tensor, k),
    v: viewOf(layouts[2].tensor, layouts[2]),
    out: out.view(),
    stats: stats.view(),
    mask: mask?.view(),
    querySegments: extra.querySegments?.view(),
    keySegments: segments?.view(),
    batch,
    numHeads: heads,
    numKvHeads: k.heads,
    numQueries: queries,
    numKeys: k.rows,
    dim: headDim,
    scale,
    queryOffset: extra.queryOffset,
    isCausal,
    window,
    qStrides: q.strides,
    kStrides: k.strides,
    vStrides: layouts[2].strides,
    maskStrides: extra.maskStrides,
    dropout: dropped && { p: dropped.p, ...dropped.key, counterOffset: dropped.counterOffset },
  });
  if (out.size > 0 && k.rows > 0) {
    device.run('attention', operands());
  } else if (out.size > 0) {
    device.run('fill', { out: out.view(), value: 0 });
  }
  if (!device.isGradEnabled) {
    return out;
  }
  const shared = sharedInputs(layouts);
  device.record({
    name: NAME,
    inputs: [...shared.map(({ tensor }) => tensor), ...(mask ? [mask] : [])],
    outputs: [out],
    saved: [
      ...shared.map(({ tensor }) => tensor),
      ...[mask, segments, extra.querySegments].filter((tensor) => tensor !== undefined),
      out,
      stats,
    ],
    backward: ([dOut], needs) => {
      const gradients = backward(layouts, shared, { dOut: dOut!, operands });
      // The mask's gradient runs after the others, because it reads sums that they make.
      const dMask = needs[shared.length] ? maskGradient(mask!, dOut!, operands) : undefined;
      return [...gradients, dMask];
    },
  });
  return out;
}

/** One input of the op, with the operands (0 to 2: q, k, v) whose gradients share its gradient. */
interface SharedInput {
  readonly tensor: Tensor;
  readonly parts: readonly number[];
}

/** Groups operands of one tensor, which share its gradient where their columns are apart. */
function sharedInputs(layouts: Layouts): SharedInput[] {
  const inputs: { tensor: Tensor; parts: number[] }[] = [];
  layouts.forEach((layout, i) => {
    const host = inputs.find(
      ({ tensor, parts }) =>
        tensor === layout.tensor && parts.every((part) => areApart(layouts[part]!, layout)),
    );
    if (host === undefined) {
      inputs.push({ tensor: layout.tensor, parts: [i] });
    } else {
      host.parts.push(i);
    }
  });
  return inputs;
}

function backward(
  layouts: Layouts,
  shared: readonly SharedInput[],
  options: {
    readonly dOut: Tensor;
    readonly operands: () => AttentionOperands;
  },
): Tensor[] {
  const { dOut, operands } = options;
  const { device } = dOut;
  const views: View[] = [];
  const canRun = dOut.size > 0 && layouts[1].rows > 0;
  const gradients = shared.map(({ tensor, parts }) => {
    const columns = parts.reduce((sum, part) => sum + widthOf(layouts[part]!), 0);
    const isCovered = columns === layouts[parts[0]!]!.strides.row;
    const like = { dtype: tensor.dtype };
    const gradient =
      isCovered && canRun ? device.empty(tensor.shape, like) : device.zeros(tensor.shape, like);
    if (canRun) {
      for (const part of parts) {
        views[part] = viewOf(gradient, layouts[part]!);
      }
    }
    return gradient;
  });
  if (canRun) {
    const [dq, dk, dv] = views as [View, View, View];
    device.run('attentionBackward', {
      ...operands(),
      dOut: dOut.view(),
      dq,
      dk,
      dv,
    });
  }
  return gradients;
}

/** Returns the mask's gradient, in the mask's shape, summed in f32 and rounded once. */
function maskGradient(mask: Tensor, dOut: Tensor, operands: () => AttentionOperands): Tensor {
  const { device, shape } = mask;
  const call = operands();
  if (dOut.size === 0 || call.numKeys === 0) {
    return device.zeros(shape, { dtype: mask.dtype });
  }
  const dMask = device.empty(shape);
  device.run('attentionMaskGradient', { ...call, dOut: dOut.view(), dMask: dMask.view() });
  return cast(dMask, mask.dtype);
}

/** Checks options, and returns them with the defaults that shapes decide. */
function checkExtra(
  [q, k]: Layouts,
  options: AttentionOptions,
): {
  readonly queryOffset: number;
  readonly querySegments: Tensor | undefined;
  readonly maskStrides: AttentionOperands['maskStrides'];
} {
  const { mask, segments, queryOffset = k.rows - q.rows } = options;
  let { querySegments } = options;
  requireSameDevice(
    NAME,
    q.tensor,
    ...[mask, segments, querySegments].filter((tensor) => tensor !== undefined),
  );
  if (querySegments !== undefined && segments === undefined) {
    throw new OptionError(`${NAME}: expected segments beside querySegments.`);
  }
  if (segments !== undefined) {
    requireIds('segments', segments, [k.batch, k.rows]);
    querySegments ??= segmentsAt(segments, { first: queryOffset, count: q.rows });
    requireIds('querySegments', querySegments, [q.batch, q.rows]);
  }
  return { queryOffset, querySegments, maskStrides: maskStridesOf(mask, [q, k]) };
}

function requireIds(name: string, ids: Tensor, shape: readonly number[]): void {
  requireInteger(NAME, ids);
  if (shapeText(ids.shape) !== shapeText(shape)) {
    throw new ShapeError(
      `${NAME}: expected ${name} of shape ${shapeText(shape)}, got ${shapeText(ids.shape)}.`,
    );
  }
}

/** Returns the ids of the positions at which the queries stand. */
function segmentsAt(
  segments: Tensor,
  { first, count }: { readonly first: number; readonly count: number },
): Tensor {
  const keys = segments.shape[1]!;
  if (first < 0 || first + count > keys) {
    throw new ShapeError(
      `${NAME}: expected queries at positions of the ${keys} keys, whose segments they have, got ${count} from ${first} on. Pass querySegments.`,
    );
  }
  return count === keys ? segments : slice(segments, { axis: 1, start: first, end: first + count });
}

/** Returns strides that read the mask as [batch, heads, queries, keys]. */
function maskStridesOf(
  mask: Tensor | undefined,
  [q, k]: readonly [Layout, Layout],
): AttentionOperands['maskStrides'] {
  if (mask === undefined) {
    return [0, 0, 0, 0];
  }
  requireFloat(NAME, mask);
  const target = [q.batch, q.heads, q.rows, k.rows];
  const lead = target.length - mask.rank;
  const fits = mask.shape.every((dim, i) => dim === 1 || dim === target[lead + i]);
  if (lead < 0 || !fits) {
    throw new ShapeError(
      `${NAME}: expected a mask that broadcasts to ${shapeText(target)} ([batch, heads, queries, keys]), got ${shapeText(mask.shape)}.`,
    );
  }
  const [batch, head, row, column] = broadcastStrides(mask.shape, target);
  return [batch!, head!, row!, column!];
}
