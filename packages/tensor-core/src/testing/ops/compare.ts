// Op cases of comparisons and where.

import type { DType } from '@shardweave/dtypes';
import { eq, ge, gt, le, lt, ne, where } from '../../ops/compare.js';
import type { Tensor } from '../../tensor.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import { FLOATS } from '../kit/sizes.js';
import { pairTwin } from '../twins/elementwise.js';

const COMPARISONS: Readonly<
  Record<
    string,
    readonly [
      op: (a: Tensor, b: Tensor | number) => Tensor,
      holds: (a: number, b: number) => boolean,
    ]
  >
> = {
  eq: [eq, (a, b) => a === b],
  ne: [ne, (a, b) => a !== b],
  lt: [lt, (a, b) => a < b],
  le: [le, (a, b) => a <= b],
  gt: [gt, (a, b) => a > b],
  ge: [ge, (a, b) => a >= b],
};
const VALUES = [0, 1, 2, 1, 3, 2];

export function compareOpCases(): OpCase[] {
  return [...comparisons(), ...choices()];
}

function comparisons(): OpCase[] {
  return Object.entries(COMPARISONS).flatMap(([kind, [op, isHeld]]) => {
    const holds = (a: number, b: number) => (isHeld(a, b) ? 1 : 0);
    return (['f32', 'bf16', 'i32', 'u32'] as const).flatMap((dtype: DType) => [
      opCase(`${kind} of ${dtype}, broadcast`, {
        dtype: 'f32',
        outDType: 'u32',
        inputs: [
          { shape: [2, 3], dtype, values: VALUES },
          { shape: [3], dtype, values: [1, 1, 2] },
        ],
        op: ([a, b]) => op(a!, b!),
        twin: ([a, b]) => pairTwin(a!, b!, holds),
      }),
      opCase(`${kind} of ${dtype} with a number`, {
        dtype: 'f32',
        outDType: 'u32',
        inputs: [{ shape: [6], dtype, values: VALUES }],
        op: ([a]) => op(a!, 1),
        twin: ([a]) => ({ shape: a!.shape, data: a!.data.map((value) => holds(value, 1)) }),
      }),
    ]);
  });
}

function choices(): OpCase[] {
  const mask = { shape: [2, 3], dtype: 'u32', values: [0, 1, 5, 1, 0, 0] } as const;
  return FLOATS.flatMap((dtype) => [
    opCase(`where of ${dtype}`, {
      dtype,
      inputs: [mask, { shape: [2, 3] }, { shape: [2, 3] }],
      op: ([condition, a, b]) => where(condition!, a!, b!),
      twin: ([condition, a, b]) => ({
        shape: [2, 3],
        data: a!.data.map((value, i) => (condition!.data[i] === 0 ? b!.data[i]! : value)),
      }),
    }),
    opCase(`where of ${dtype}, broadcast`, {
      dtype,
      inputs: [mask, { shape: [3] }, { shape: [4, 1, 1] }],
      op: ([condition, a, b]) => where(condition!, a!, b!),
      twin: ([condition, a, b]) => ({
        shape: [4, 2, 3],
        data: Float64Array.from({ length: 24 }, (_, i) =>
          condition!.data[i % 6] === 0 ? b!.data[Math.floor(i / 6)]! : a!.data[i % 3]!,
        ),
      }),
    }),
    opCase(`where of ${dtype} and a number`, {
      dtype,
      inputs: [mask, { shape: [2, 3] }],
      op: ([condition, a]) => where(condition!, a!, -2),
      twin: ([condition, a]) => ({
        shape: [2, 3],
        data: a!.data.map((value, i) => (condition!.data[i] === 0 ? -2 : value)),
      }),
    }),
    opCase(`where of a number and ${dtype}`, {
      dtype,
      inputs: [mask, { shape: [2, 3] }],
      op: ([condition, b]) => where(condition!, 0.5, b!),
      twin: ([condition, b]) => ({
        shape: [2, 3],
        data: b!.data.map((value, i) => (condition!.data[i] === 0 ? value : 0.5)),
      }),
    }),
  ]);
}
