// Op cases along the last axis: softmax, embedding, cross-entropy.

import { crossEntropy } from '../../ops/cross-entropy.js';
import { embedding } from '../../ops/embedding.js';
import { logSoftmax, softmax } from '../../ops/softmax.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import { FLOATS } from '../kit/sizes.js';
import { crossEntropyTwin, embeddingTwin, softmaxTwin } from '../twins/rows.js';

const SHAPES = {
  f32: [[7, 65], [3, 1], [2, 3, 7], [63]],
  f16: [[3, 7]],
  bf16: [[3, 7]],
} as const;
/** An id outside every table and beyond all classes in these cases. */
const NO_TARGET = 1000;

export function rowOpCases(): OpCase[] {
  return [
    ...softmaxCases(),
    ...embeddingCases(),
    ...crossEntropyCases(),
    ...weightedCrossEntropyCases(),
    crossEntropyOverAllCase(),
  ];
}

function softmaxCases(): OpCase[] {
  return FLOATS.flatMap((dtype) =>
    SHAPES[dtype].flatMap((shape) =>
      [false, true].map((isLog) =>
        opCase(`${isLog ? 'logSoftmax' : 'softmax'} ${dtype} [${shape.join(', ')}]`, {
          dtype,
          inputs: [{ shape, values: { low: -4, high: 4 } }],
          op: ([x]) => (isLog ? logSoftmax(x!) : softmax(x!)),
          twin: ([x]) => softmaxTwin(x!, { isLog }),
          roundings: 4, // the gradient starts from the rounded output
        }),
      ),
    ),
  );
}

function embeddingCases(): OpCase[] {
  return FLOATS.flatMap((dtype) =>
    (['i32', 'u32'] as const).map((idType) =>
      opCase(`embedding ${dtype} by repeated ${idType} ids`, {
        dtype,
        inputs: [
          { shape: [5, 7] },
          { shape: [3, 3], dtype: idType, values: [4, 0, 4, 2, 4, 0, NO_TARGET, 1, 2] },
        ],
        op: ([table, ids]) => embedding(table!, ids!),
        twin: ([table, ids]) => embeddingTwin(table!, ids!),
      }),
    ),
  ).concat(
    opCase('embedding of no ids', {
      dtype: 'f32',
      inputs: [{ shape: [5, 7] }, { shape: [0], dtype: 'i32' }],
      op: ([table, ids]) => embedding(table!, ids!),
      twin: ([table, ids]) => embeddingTwin(table!, ids!),
    }),
  );
}

/** Takes weights of 0, above 1 and in between, which have a gradient as well. */
function weightedCrossEntropyCases(): OpCase[] {
  return (['mean', 'sum', 'none'] as const).map((reduction) =>
    opCase(`crossEntropy ${reduction} with weights`, {
      dtype: 'f32',
      inputs: [
        { shape: [3, 3, 63], values: { low: -4, high: 4 } },
        { shape: [3, 3], dtype: 'i32', values: [62, 0, 5, 5, NO_TARGET, 31, -100, 2, 3] },
        { shape: [3, 3], values: [1, 0.25, 0, 3, 1, 1, 2, 0.5, 1] },
      ],
      op: ([logits, targets, weights]) =>
        crossEntropy(logits!, targets!, { reduction, weights: weights! }),
      twin: ([logits, targets, weights]) =>
        crossEntropyTwin(logits!, targets!, { reduction, weights: weights! }),
    }),
  );
}

function crossEntropyOverAllCase(): OpCase {
  const divisor = 'all';
  return opCase('crossEntropy mean over all targets', {
    dtype: 'f32',
    inputs: [
      { shape: [2, 3, 5], values: { low: -4, high: 4 } },
      { shape: [2, 3], dtype: 'i32', values: [4, 5, -1, 0, -100, 2] },
    ],
    op: ([logits, targets]) => crossEntropy(logits!, targets!, { divisor }),
    twin: ([logits, targets]) =>
      crossEntropyTwin(logits!, targets!, { reduction: 'mean', divisor }),
  });
}

function crossEntropyCases(): OpCase[] {
  return FLOATS.flatMap((dtype) =>
    (['mean', 'sum', 'none'] as const).flatMap((reduction) =>
      (['i32', 'u32'] as const).map((idType) =>
        opCase(`crossEntropy ${reduction} of ${dtype} by ${idType} ids`, {
          dtype,
          outDType: 'f32',
          inputs: [
            { shape: [3, 3, 63], values: { low: -4, high: 4 } },
            { shape: [3, 3], dtype: idType, values: [62, 0, 5, 5, NO_TARGET, 31, 1, 2, 3] },
          ],
          op: ([logits, targets]) => crossEntropy(logits!, targets!, { reduction }),
          twin: ([logits, targets]) => crossEntropyTwin(logits!, targets!, { reduction }),
        }),
      ),
    ),
  );
}
