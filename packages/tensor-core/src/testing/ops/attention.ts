// Op cases of causal self-attention.

import { causalSelfAttention } from '../../ops/attention.js';
import { type OpCase, opCase } from '../op-check.js';
import type { FloatDType } from '../op-tolerance.js';
import { FLOATS } from '../sizes.js';
import { attentionTwin } from '../twins/attention.js';

/** [batch, seq, heads, headDim] */
const EXTENTS: readonly (readonly [number, number, number, number])[] = [
  [1, 1, 1, 2],
  [2, 7, 1, 6],
  [2, 7, 3, 4],
  [1, 65, 2, 4],
];

export function attentionOpCases(): OpCase[] {
  return [
    ...EXTENTS.map((extent) => attentionCase('f32', extent, 0)),
    ...FLOATS.slice(1).map((dtype) => attentionCase(dtype, [2, 7, 3, 4], 0)),
    ...FLOATS.map((dtype) => attentionCase(dtype, [2, 7, 3, 4], 0.25)),
    attentionCase('f32', [3, 5, 1, 2], 0.5),
  ];
}

function attentionCase(
  dtype: FloatDType,
  [batch, seq, numHeads, headDim]: readonly [number, number, number, number],
  dropout: number,
): OpCase {
  const shape = [batch, seq, 3 * numHeads * headDim];
  const dropped = dropout > 0 ? ` with dropout ${dropout}` : '';
  return opCase(
    `causalSelfAttention ${dtype} [${shape.join(', ')}] of ${numHeads} heads${dropped}`,
    {
      dtype,
      inputs: [{ shape }],
      op: ([qkv]) => causalSelfAttention(qkv!, { numHeads, dropout }),
      twin: ([qkv], key) =>
        attentionTwin(qkv!, {
          numHeads,
          mask: dropout > 0 ? { p: dropout, ...key, counterOffset: 0 } : undefined,
        }),
      roundings: 16, // scores, weights, masked weights and their gradients are stored
    },
  );
}
