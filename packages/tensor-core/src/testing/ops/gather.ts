// Op cases of gather, argMax, topK and cumSum.

import { cumSum } from '../../ops/cum-sum.js';
import { gather } from '../../ops/gather.js';
import { argMax, topK } from '../../ops/top-k.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import { FLOATS } from '../kit/sizes.js';
import { buildTwin, elementAt, type TwinArray } from '../twins/twin-array.js';

/** Values that are all different, and further apart than the step of central differences. */
const SPREAD = [3, -1, 2.5, 0.5, 4, -2, 1.5, 0, -3, 2, 1, -0.5];

export function gatherOpCases(): OpCase[] {
  return FLOATS.flatMap((dtype) => [
    opCase(`gather ${dtype} along the last axis`, {
      dtype,
      inputs: [
        { shape: [2, 5] },
        { shape: [2, 4], dtype: 'i32', values: [4, 0, 4, 9, 1, 1, 1, -1] },
      ],
      op: ([x, ids]) => gather(x!, ids!),
      twin: ([x, ids]) => gatherTwin(x!, ids!, 1),
      roundings: 3,
    }),
    opCase(`gather ${dtype} along the first axis`, {
      dtype,
      inputs: [{ shape: [3, 4] }, { shape: [1, 4], dtype: 'u32', values: [2, 0, 2, 1] }],
      op: ([x, ids]) => gather(x!, ids!, { axis: 0 }),
      twin: ([x, ids]) => gatherTwin(x!, ids!, 0),
    }),
    opCase(`gather ${dtype} of no indices`, {
      dtype,
      inputs: [{ shape: [2, 3] }, { shape: [2, 0], dtype: 'i32' }],
      op: ([x, ids]) => gather(x!, ids!),
      twin: () => ({ shape: [2, 0], data: new Float64Array(0) }),
    }),
    ...[0, 1, -1].map((axis) =>
      opCase(`topK ${dtype} along axis ${axis}`, {
        dtype,
        inputs: [{ shape: [2, 3, 2], values: SPREAD }],
        op: ([x]) => x!.device.scope(() => topK(x!, 2, { axis }).values),
        twin: ([x]) => gatherTwin(x!, largestTwin(x!, axis < 0 ? 2 : axis, 2), axis < 0 ? 2 : axis),
      }),
    ),
    opCase(`argMax ${dtype}`, {
      dtype,
      outDType: 'i32',
      inputs: [{ shape: [2, 3, 2], values: SPREAD }],
      op: ([x]) => argMax(x!, { axis: 1 }),
      twin: ([x]) => ({ shape: [2, 2], data: largestTwin(x!, 1, 1).data }),
    }),
    ...[0, 1, 2].map((axis) =>
      opCase(`cumSum ${dtype} along axis ${axis}`, {
        dtype,
        inputs: [{ shape: [2, 5, 3] }],
        op: ([x]) => cumSum(x!, { axis }),
        twin: ([x]) =>
          buildTwin(x!.shape, (index) => {
            let sum = 0;
            for (let n = 0; n <= index[axis]!; n++) {
              sum += elementAt(x!, index.with(axis, n));
            }
            return sum;
          }),
      }),
    ),
  ]).concat(
    opCase('argMax with its axis kept', {
      dtype: 'f32',
      outDType: 'i32',
      inputs: [{ shape: [2, 3], values: [1, 3, 3, Number.NaN, 5, Number.NaN] }],
      op: ([x]) => argMax(x!, { keepDims: true }),
      twin: () => ({ shape: [2, 1], data: Float64Array.of(1, 0) }),
    }),
    opCase('cumSum of i32', {
      dtype: 'f32',
      outDType: 'i32',
      inputs: [{ shape: [2, 3], dtype: 'i32', values: [1, -2, 3, 4, 5, -6] }],
      op: ([x]) => cumSum(x!),
      twin: () => ({ shape: [2, 3], data: Float64Array.of(1, -1, 2, 4, 9, 3) }),
    }),
  );
}

function gatherTwin(x: TwinArray, ids: TwinArray, axis: number): TwinArray {
  return buildTwin(ids.shape, (index) => {
    const id = elementAt(ids, index);
    return id >= 0 && id < x.shape[axis]! ? elementAt(x, index.with(axis, id)) : 0;
  });
}

function largestTwin(x: TwinArray, axis: number, k: number): TwinArray {
  return buildTwin(
    x.shape.map((size, i) => (i === axis ? k : size)),
    (index) => {
      const line = Array.from({ length: x.shape[axis]! }, (_, d) =>
        elementAt(x, index.with(axis, d)),
      );
      const order = line.map((_, d) => d).sort((a, b) => line[b]! - line[a]! || a - b);
      return order[index[axis]!]!;
    },
  );
}
