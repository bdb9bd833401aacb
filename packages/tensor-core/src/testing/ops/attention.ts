// Op cases of attention: packed rows, operands of their own, groups of heads and every option.

import {
  type AttentionOptions,
  causalSelfAttention,
  scaledDotProductAttention,
} from '../../ops/attention.js';
import { headsOf } from '../../ops/attention-heads.js';
import { type OpCase, type OpInput, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { FLOATS } from '../kit/sizes.js';
import { type AttentionTwinOptions, attentionTwin, headsTwin } from '../twins/attention.js';

/** [batch, seq, heads, headDim] */
const EXTENTS: readonly (readonly [number, number, number, number])[] = [
  [1, 1, 1, 2],
  [2, 7, 1, 6],
  [2, 7, 3, 4],
  [1, 65, 2, 3],
];

export function attentionOpCases(): OpCase[] {
  return [
    ...EXTENTS.map((extent) => packedCase('f32', extent, 0)),
    ...FLOATS.slice(1).map((dtype) => packedCase(dtype, [2, 7, 3, 4], 0)),
    ...FLOATS.map((dtype) => packedCase(dtype, [2, 7, 3, 4], 0.25)),
    packedCase('f32', [3, 5, 1, 2], 0.5),
    ownCase('of its own operands', { queries: 5, keys: 9 }, {}),
    ownCase(
      'of groups, causal, in the last positions',
      { queries: 3, keys: 9 },
      { isCausal: true },
    ),
    ownCase('of one query of a cache', { queries: 1, keys: 9 }, { isCausal: true, queryOffset: 6 }),
    ownCase('in a window', { queries: 9, keys: 9 }, { isCausal: true, window: 3, scale: 0.8 }),
    ownCase('in a window to both sides', { queries: 9, keys: 9 }, { window: 2 }),
    ownCase('where the first rows see nothing', { queries: 5, keys: 4 }, { isCausal: true }),
    ownCase('with dropout', { queries: 5, keys: 7 }, { dropout: 0.4 }),
    segmentsCase(),
    querySegmentsCase(),
    ...[[2, 4, 5, 7], [2, 1, 5, 7], [4, 1, 7], [5, 1], [7], []].map((shape) => maskCase(shape)),
    maskCase([2, 1, 1, 7], { isCausal: true, dropout: 0.3 }),
    maskCase([4, 5, 7], {}, 'bf16'),
    sharedCase(),
  ];
}

function packedCase(
  dtype: FloatDType,
  [batch, seq, numHeads, headDim]: readonly [number, number, number, number],
  dropout: number,
): OpCase {
  const dim = numHeads * headDim;
  const shape = [batch, seq, 3 * dim];
  const dropped = dropout > 0 ? ` with dropout ${dropout}` : '';
  const name = `causalSelfAttention ${dtype} [${shape.join(', ')}] of ${numHeads} heads${dropped}`;
  return opCase(name, {
    dtype,
    inputs: [{ shape }],
    op: ([qkv]) => causalSelfAttention(qkv!, { numHeads, dropout }),
    twin: ([qkv], key) => {
      const part = (i: number) =>
        headsTwin(qkv!, { start: i * dim, heads: numHeads, dim: headDim });
      const mask = dropout > 0 ? { p: dropout, ...key, counterOffset: 0 } : undefined;
      const out = attentionTwin(part(0), part(1), part(2), { isCausal: true, dropped: mask });
      return { ...out, shape: [batch, seq, dim] };
    },
    roundings: 4, // the gradient starts from the rounded output
  });
}

/** Returns inputs with four heads of queries and two of keys and values, in two batches. */
function operands({
  queries,
  keys,
}: {
  readonly queries: number;
  readonly keys: number;
}): OpInput[] {
  return [{ shape: [2, queries, 4, 3] }, { shape: [2, keys, 2, 3] }, { shape: [2, keys, 2, 3] }];
}

function ownCase(
  name: string,
  extent: { readonly queries: number; readonly keys: number },
  options: AttentionOptions & AttentionTwinOptions,
): OpCase {
  const { dropout = 0, ...rest } = options;
  return opCase(`scaledDotProductAttention ${name}`, {
    dtype: 'f32',
    inputs: operands(extent),
    op: ([q, k, v]) => scaledDotProductAttention(q!, k!, v!, options as AttentionOptions),
    twin: ([q, k, v], key) => {
      const dropped = dropout > 0 ? { p: dropout, ...key, counterOffset: 0 } : undefined;
      return attentionTwin(q!, k!, v!, { ...(rest as AttentionTwinOptions), dropped });
    },
  });
}

function segmentsCase(): OpCase {
  const segments: OpInput = {
    shape: [2, 6],
    dtype: 'i32',
    values: [3, 3, 3, 5, 5, -1, 0, 1, 1, 1, 1, 1],
  };
  return opCase('scaledDotProductAttention of packed documents', {
    dtype: 'f32',
    inputs: [...operands({ queries: 4, keys: 6 }), segments],
    op: ([q, k, v, ids]) =>
      scaledDotProductAttention(q!, k!, v!, { isCausal: true, segments: ids! }),
    twin: ([q, k, v, ids]) => attentionTwin(q!, k!, v!, { isCausal: true, segments: ids! }),
  });
}

function querySegmentsCase(): OpCase {
  const ids = (shape: readonly number[], values: readonly number[]): OpInput => ({
    shape,
    dtype: 'u32',
    values,
  });
  return opCase('scaledDotProductAttention of documents in rows of two kinds', {
    dtype: 'f32',
    inputs: [
      ...operands({ queries: 3, keys: 4 }),
      ids([2, 4], [1, 2, 2, 9, 4, 4, 5, 5]),
      ids([2, 3], [2, 1, 7, 5, 5, 4]),
    ],
    op: ([q, k, v, segments, querySegments]) =>
      scaledDotProductAttention(q!, k!, v!, { segments: segments!, querySegments: querySegments! }),
    twin: ([q, k, v, segments, querySegments]) =>
      attentionTwin(q!, k!, v!, { segments: segments!, querySegments: querySegments! }),
  });
}

/** Checks a mask, whose gradient is summed over everything that the mask is broadcast over. */
function maskCase(
  shape: readonly number[],
  options: { readonly isCausal?: boolean; readonly dropout?: number } = {},
  dtype: FloatDType = 'f32',
): OpCase {
  const size = shape.reduce((product, dim) => product * dim, 1);
  // Every eleventh element hides its key.
  const values = Array.from({ length: size }, (_, i) =>
    i % 11 === 4 ? Number.NEGATIVE_INFINITY : ((i * 37) % 50) / 16 - 1.5,
  );
  const { dropout = 0, ...rest } = options;
  const said = Object.entries(options).map(([name, value]) => `, ${name} ${value}`);
  return opCase(
    `scaledDotProductAttention with a mask ${dtype} [${shape.join(', ')}]${said.join('')}`,
    {
      dtype: 'f32',
      inputs: [...operands({ queries: 5, keys: 7 }), { shape, dtype, values }],
      op: ([q, k, v, mask]) => scaledDotProductAttention(q!, k!, v!, { ...options, mask: mask! }),
      twin: ([q, k, v, mask], key) => {
        const dropped = dropout > 0 ? { p: dropout, ...key, counterOffset: 0 } : undefined;
        return attentionTwin(q!, k!, v!, { ...rest, mask: mask!, dropped });
      },
    },
  );
}

/**
 * Takes keys and values that are the same columns of one tensor, with queries beside them, so that
 * its gradients are added.
 */
function sharedCase(): OpCase {
  return opCase('scaledDotProductAttention of keys that are the values', {
    dtype: 'f32',
    inputs: [{ shape: [2, 5, 11] }],
    op: ([x]) => {
      const q = headsOf(x!, { numHeads: 2, headDim: 3 });
      const k = headsOf(x!, { numHeads: 1, headDim: 3, start: 7 });
      return scaledDotProductAttention(q, k, k);
    },
    twin: ([x]) => {
      const k = headsTwin(x!, { start: 7, heads: 1, dim: 3 });
      const out = attentionTwin(headsTwin(x!, { start: 0, heads: 2, dim: 3 }), k, k, {});
      return { ...out, shape: [2, 5, 6] };
    },
  });
}
