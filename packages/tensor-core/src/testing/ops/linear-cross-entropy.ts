// Op cases of a model's head with its loss, in one chunk and in many, whose borders cut rows and
// classes unevenly.

import { linearCrossEntropy } from '../../ops/linear-cross-entropy.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { FLOATS } from '../kit/sizes.js';
import { crossEntropyTwin } from '../twins/rows.js';
import { buildTwin, type TwinArray } from '../twins/twin-array.js';

/**
 * Fewer bytes than any chunk takes, which gives the smallest chunks: one row in forward and 64
 * classes in backward.
 */
const LEAST = 1;

const SIZES = [
  { rows: 1, classes: 1, dim: 1 },
  { rows: 7, classes: 63, dim: 7, chunkBytes: 4 * 63 * 3 }, // 3, 3 and 1 row
  { rows: 7, classes: 64, dim: 3, chunkBytes: LEAST },
  { rows: 63, classes: 65, dim: 7, chunkBytes: LEAST }, // 64 classes and 1
  { rows: 65, classes: 7, dim: 63, chunkBytes: 4 * 7 * 64 }, // 64 rows and 1
  { rows: 5, classes: 1000, dim: 7, chunkBytes: 4 * 5 * 132 }, // 128 classes, 104 at the end
  { rows: 1000, classes: 65, dim: 1, chunkBytes: 4 * 65 * 100 }, // 64 classes and 1
] as const;

export function linearCrossEntropyOpCases(): OpCase[] {
  return [
    ...SIZES.map((size) => sized('f32', size)),
    ...FLOATS.filter((dtype) => dtype !== 'f32').flatMap((dtype) => [
      sized(dtype, { rows: 7, classes: 63, dim: 7 }),
      sized(dtype, { rows: 9, classes: 131, dim: 7, chunkBytes: LEAST }),
      sized(dtype, { rows: 130, classes: 66, dim: 2, chunkBytes: LEAST }), // dx by 64 rows, 64 and 2
    ]),
    ...(['mean', 'sum', 'none'] as const).map(weighted),
    unsignedIds(),
    nothingCounted(),
  ];
}

interface Size {
  readonly rows: number;
  readonly classes: number;
  readonly dim: number;
  readonly chunkBytes?: number;
}

function sized(dtype: FloatDType, { rows, classes, dim, chunkBytes }: Size): OpCase {
  // Every fifth id is no class. The others go on by 37, so that they visit all chunks.
  const ids = Array.from({ length: rows }, (_, i) =>
    i % 5 === 4 ? [-100, classes][i % 2]! : (37 * i + classes - 1) % classes,
  );
  const chunks = chunkBytes === undefined ? '' : ` by ${chunkBytes} bytes`;
  return opCase(`linearCrossEntropy ${dtype} ${rows} x ${dim} x ${classes}${chunks}`, {
    dtype,
    outDType: 'f32',
    inputs: [
      { shape: [rows, dim] },
      { shape: [classes, dim] },
      { shape: [rows], dtype: 'i32', values: ids },
    ],
    op: ([x, weight, targets]) =>
      linearCrossEntropy(x!, targets!, {
        weight: weight!,
        reduction: 'mean',
        ...(chunkBytes === undefined ? {} : { chunkBytes }),
      }),
    twin: ([x, weight, targets]) =>
      crossEntropyTwin(logitsTwin(x!, weight!), targets!, { reduction: 'mean' }),
  });
}

function weighted(reduction: 'mean' | 'sum' | 'none'): OpCase {
  return opCase(`linearCrossEntropy ${reduction} with weights`, {
    dtype: 'f32',
    inputs: [
      { shape: [3, 3, 5] },
      { shape: [130, 5] },
      { shape: [3, 3], dtype: 'i32', values: [129, 0, 63, 64, 1000, 31, -100, 127, 128] },
      { shape: [3, 3], values: [1, 0.25, 0, 3, 1, 1, 2, 0.5, 1] },
    ],
    op: ([x, weight, targets, weights]) =>
      linearCrossEntropy(x!, targets!, {
        weight: weight!,
        weights: weights!,
        reduction,
        chunkBytes: LEAST,
      }),
    twin: ([x, weight, targets, weights]) =>
      crossEntropyTwin(logitsTwin(x!, weight!), targets!, { reduction, weights: weights! }),
  });
}

function unsignedIds(): OpCase {
  return opCase('linearCrossEntropy by u32 ids', {
    dtype: 'f32',
    inputs: [
      { shape: [4, 5] },
      { shape: [130, 5] },
      { shape: [4], dtype: 'u32', values: [129, 64, 130, 3] },
    ],
    op: ([x, weight, targets]) =>
      linearCrossEntropy(x!, targets!, { weight: weight!, chunkBytes: LEAST }),
    twin: ([x, weight, targets]) =>
      crossEntropyTwin(logitsTwin(x!, weight!), targets!, { reduction: 'mean' }),
  });
}

/** Ignores all targets: their sum is 0, and gradients are zeros and not absent. */
function nothingCounted(): OpCase {
  return opCase('linearCrossEntropy of ignored targets alone', {
    dtype: 'f32',
    inputs: [
      { shape: [3, 5] },
      { shape: [130, 5] },
      { shape: [3], dtype: 'i32', values: [-100, 130, -1] },
    ],
    op: ([x, weight, targets]) =>
      linearCrossEntropy(x!, targets!, {
        weight: weight!,
        reduction: 'sum',
        chunkBytes: LEAST,
      }),
    twin: ([x, weight, targets]) =>
      crossEntropyTwin(logitsTwin(x!, weight!), targets!, { reduction: 'sum' }),
  });
}

/** Returns x [..., dim] times the transpose of weight [classes, dim]. */
function logitsTwin(x: TwinArray, weight: TwinArray): TwinArray {
  const [classes, dim] = weight.shape as [number, number];
  const rows = x.data.length / dim;
  return buildTwin([rows, classes], ([row, column]) => {
    let sum = 0;
    for (let i = 0; i < dim; i++) {
      sum += x.data[row! * dim + i]! * weight.data[column! * dim + i]!;
    }
    return sum;
  });
}
