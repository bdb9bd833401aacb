// The losses of classifiers, as PyTorch computes them (cross_entropy with weight,
// binary_cross_entropy_with_logits with pos_weight, mse_loss). Labels and weights are on the host.

import {
  add,
  affine,
  cast,
  cat,
  crossEntropy,
  reshape,
  ShapeError,
  square,
  sub,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { above, checkOptions, type OptionRule, oneOf, optional } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { PROBLEM_TYPES, type ProblemType } from './sequence-classifier.js';

/** Options of classificationLoss. */
export interface ClassificationLossOptions {
  /** What the labels are. */
  readonly problemType: ProblemType;
  /**
   * The factor of each class, for one label a row. A mean is weighted: it divides by the sum of the
   * factors of the rows' labels. Default 1 each.
   */
  readonly classWeights?: ArrayLike<number> | undefined;
  /**
   * For several labels at once, the factor of each label where a row has it: the number of rows
   * without it over those with it makes up for a rare one. Default 1 each.
   */
  readonly posWeights?: ArrayLike<number> | undefined;
  /**
   * What the sum of losses is divided by, such as what all ranks or micro-batches divide by.
   * Default: the sum of the labels' class weights for one label a row, else the number of logits.
   */
  readonly divisor?: number | undefined;
}

const WEIGHTS: OptionRule = {
  expected: 'a list of numbers of at least 0, one for each label',
  holds: (value) =>
    (Array.isArray(value) || ArrayBuffer.isView(value)) &&
    Array.from(value as ArrayLike<number>).every(
      (weight) => Number.isFinite(weight) && weight >= 0,
    ),
};

/**
 * The mean loss of a classifier's logits [rows, labels], f32 []. Labels are, row by row: for one
 * label a row its id, where one below 0, such as -100, leaves the row out; for several at once a
 * number from 0 to 1 for each logit, by binary cross-entropy; for regression the wanted logits, by
 * squared errors. A mean of no rows is NaN, as PyTorch's.
 * @throws {ShapeError} for logits that are not [rows, labels], and for another number of labels
 * @throws {NnConfigError} for labels out of range, and for options that cannot work
 */
export function classificationLoss(
  logits: Tensor,
  labels: ArrayLike<number>,
  options: ClassificationLossOptions,
): Tensor {
  checkOptions<ClassificationLossOptions>('classificationLoss', options, {
    problemType: oneOf(...PROBLEM_TYPES),
    classWeights: optional(WEIGHTS),
    posWeights: optional(WEIGHTS),
    divisor: optional(above(0)),
  });
  requireLabels(logits, labels, options);
  return logits.device.scope(() => {
    const rows = cast(logits, 'f32');
    const { total, divisor } = LOSSES[options.problemType](rows, labels, options);
    return affine(total, 1 / (options.divisor ?? divisor), 0);
  });
}

/** A sum of losses, and what makes a mean of it. */
interface Sum {
  readonly total: Tensor;
  readonly divisor: number;
}

type LossOf = (
  logits: Tensor,
  labels: ArrayLike<number>,
  options: ClassificationLossOptions,
) => Sum;

const LOSSES: Readonly<Record<ProblemType, LossOf>> = {
  single_label_classification: (logits, labels, { classWeights }) => {
    const weights = Float32Array.from(labels, (label) =>
      label < 0 ? 0 : (classWeights?.[label] ?? 1),
    );
    return {
      total: weightedSum(logits, Int32Array.from(labels), weights),
      divisor: weights.reduce((all, weight) => all + weight, 0),
    };
  },
  multi_label_classification: (logits, labels, { posWeights }) => {
    const { size, device } = logits;
    const numLabels = logits.shape[1]!;
    // The logits 0 and x of two classes have the losses log(1 + e^x) and log(1 + e^-x), whose
    // kernel is exact for large x, and has the right gradient at 0.
    const column = reshape(logits, [size, 1]);
    const pairs = cat([device.zeros([size, 1]), column], { axis: 1 });
    const ones = Float32Array.from(
      labels,
      (label, i) => label * (posWeights?.[i % numLabels] ?? 1),
    );
    const zeros = Float32Array.from(labels, (label) => 1 - label);
    const total = add(
      weightedSum(pairs, new Int32Array(size).fill(1), ones),
      weightedSum(pairs, new Int32Array(size), zeros),
    );
    return { total, divisor: size };
  },
  regression: (logits, labels) => {
    const wanted = logits.device.tensor(Float32Array.from(labels), logits.shape);
    return { total: sum(square(sub(logits, wanted))), divisor: logits.size };
  },
};

function weightedSum(logits: Tensor, targets: Int32Array, weights: Float32Array): Tensor {
  const { device } = logits;
  return crossEntropy(logits, device.tensor(targets), {
    weights: device.tensor(weights),
    reduction: 'sum',
  });
}

function requireLabels(
  { rank, shape, size }: Tensor,
  labels: ArrayLike<number>,
  { problemType, classWeights, posWeights }: ClassificationLossOptions,
): void {
  const isSingle = problemType === 'single_label_classification';
  const [rows, numLabels] = shape as [number, number];
  if (rank !== 2 || labels.length !== (isSingle ? rows : size)) {
    throw new ShapeError(
      `classificationLoss: expected logits [rows, labels] and a label for each ${isSingle ? 'row' : 'logit'}, got logits [${shape.join(', ')}] and ${labels.length} labels.`,
    );
  }
  for (const [name, weights, needed] of [
    ['classWeights', classWeights, 'single_label_classification'],
    ['posWeights', posWeights, 'multi_label_classification'],
  ] as const) {
    if (weights !== undefined && (weights.length !== numLabels || problemType !== needed)) {
      throw new NnConfigError(
        `classificationLoss: expected ${name} to be one for each of ${numLabels} labels and beside ${needed}, got ${weights.length} beside ${problemType}.`,
      );
    }
  }
  const isFit = {
    single_label_classification: (label: number) => Number.isInteger(label) && label < numLabels,
    multi_label_classification: (label: number) => label >= 0 && label <= 1,
    regression: Number.isFinite,
  }[problemType];
  const wrong = Array.from(labels).findIndex((label) => !isFit(label));
  if (wrong >= 0) {
    const expected = {
      single_label_classification: `ids below ${numLabels}`,
      multi_label_classification: 'numbers from 0 to 1',
      regression: 'finite numbers',
    }[problemType];
    throw new NnConfigError(
      `classificationLoss: expected labels to be ${expected}, got ${labels[wrong]} (label ${wrong}).`,
    );
  }
}
