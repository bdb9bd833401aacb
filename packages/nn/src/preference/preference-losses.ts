// Losses of pairs of answers of which one is preferred: DPO (Rafailov et al., 2023) and ORPO (Hong
// et al., 2024). Both are a logistic loss of a margin, by which a model prefers the chosen answer.

import {
  add,
  affine,
  cat,
  crossEntropy,
  exp,
  log,
  maximum,
  mul,
  reshape,
  ShapeError,
  sub,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { above, checkOptions, type OptionRule, optional } from '../check-options.js';

/** The logarithms of the probabilities of pairs of answers, f32 [pairs]; see answerLogProbs. */
export interface AnswerPairs {
  readonly chosen: Tensor;
  readonly rejected: Tensor;
}

/** A number for each answer of pairs, on the host. */
export interface PairNumbers {
  readonly chosen: ArrayLike<number>;
  readonly rejected: ArrayLike<number>;
}

/** What a loss of pairs has found. */
export interface PreferenceLoss {
  /** The mean over pairs, f32 []. */
  readonly loss: Tensor;
  /** By how much each pair's chosen answer is preferred, f32 [pairs]: if above 0, it is. */
  readonly margins: Tensor;
}

/** Options of dpoLoss. */
export interface DpoLossOptions {
  /** The logarithms of the probabilities by the model that training shall keep close to. */
  readonly reference: PairNumbers;
  /** How closely the reference is kept to: the larger, the closer. Default 0.1. */
  readonly beta?: number | undefined;
  /** How likely a pair is taken to be the wrong way round, from 0 to below 1/2. Default 0. */
  readonly labelSmoothing?: number | undefined;
  /** What the sum of losses is divided by. Default: the number of pairs. */
  readonly divisor?: number | undefined;
}

/** Options of orpoLoss. */
export interface OrpoLossOptions {
  /** The number of tokens of each answer. */
  readonly lengths: PairNumbers;
  /** What the loss of the odds counts beside that of the chosen answer. Default 0.1. */
  readonly lambda?: number | undefined;
  /** What the sum of losses is divided by. Default: the number of pairs. */
  readonly divisor?: number | undefined;
}

const SMOOTHING: OptionRule = {
  expected: 'a number of at least 0 and below 0.5',
  holds: (value) => typeof value === 'number' && value >= 0 && value < 0.5,
};
const NUMBERS: OptionRule = {
  expected: 'lists of numbers { chosen, rejected }',
  holds: (value) => typeof value === 'object' && value !== null,
};
/** Where all tokens have the probability 1 to f32, odds would be infinite; half its last digit. */
const LEAST_LOSS = 2 ** -25;

/**
 * The loss of DPO: -log sigmoid(margin), where the margin is beta ((chosen - rejected) - (those of
 * the reference)). Its gradient reaches the model's own answers alone.
 * @throws {ShapeError} unless all have a number for each pair
 * @throws {NnConfigError} for options that cannot work
 */
export function dpoLoss(pairs: AnswerPairs, options: DpoLossOptions): PreferenceLoss {
  const op = 'dpoLoss';
  checkOptions<DpoLossOptions>(op, options, {
    reference: NUMBERS,
    beta: optional(above(0)),
    labelSmoothing: optional(SMOOTHING),
    divisor: optional(above(0)),
  });
  const { reference, beta = 0.1, labelSmoothing = 0, divisor } = options;
  const count = requirePairs(op, pairs, reference);
  const { device } = pairs.chosen;
  return device.scope(() => {
    const apart = Float32Array.from(
      reference.chosen,
      (chosen, i) => chosen - reference.rejected[i]!,
    );
    const own = sub(pairs.chosen, pairs.rejected);
    const margins = affine(sub(own, device.tensor(apart, [count])), beta, 0);
    const total = logisticLoss(margins, labelSmoothing);
    return { loss: affine(total, 1 / (divisor ?? count), 0), margins };
  });
}

/**
 * The loss of ORPO: the mean loss of the chosen answer's tokens plus lambda times -log
 * sigmoid(margin). The margin is the logarithm of the ratio of both answers' odds p / (1 - p),
 * where p is the geometric mean of an answer's tokens' probabilities. It takes no reference.
 * @throws {ShapeError} unless all have a number for each pair
 * @throws {NnConfigError} for options that cannot work
 */
export function orpoLoss(pairs: AnswerPairs, options: OrpoLossOptions): PreferenceLoss {
  const op = 'orpoLoss';
  checkOptions<OrpoLossOptions>(op, options, {
    lengths: NUMBERS,
    lambda: optional(above(0)),
    divisor: optional(above(0)),
  });
  const { lengths, lambda = 0.1, divisor } = options;
  const count = requirePairs(op, pairs, lengths);
  const { device } = pairs.chosen;
  /** The mean loss of each answer's tokens. */
  const meanOf = (logProbs: Tensor, own: ArrayLike<number>) =>
    mul(logProbs, device.tensor(Float32Array.from(own, (length) => -1 / length)));
  return device.scope(() => {
    const [chosen, rejected] = [
      meanOf(pairs.chosen, lengths.chosen),
      meanOf(pairs.rejected, lengths.rejected),
    ];
    const margins = sub(logOdds(chosen), logOdds(rejected));
    const total = add(sum(chosen), affine(logisticLoss(margins, 0), lambda, 0));
    return { loss: affine(total, 1 / (divisor ?? count), 0), margins };
  });
}

/** The sum of -log sigmoid(margin), where the pair is taken to be the other way round at times. */
function logisticLoss(margins: Tensor, labelSmoothing: number): Tensor {
  const right = softplusSum(affine(margins, -1, 0));
  if (labelSmoothing === 0) {
    return right;
  }
  const wrong = affine(softplusSum(margins), labelSmoothing, 0);
  return add(affine(right, 1 - labelSmoothing, 0), wrong);
}

/**
 * The sum of log(1 + e^x): the loss of the second of two classes with the logits x and 0. Its slope
 * is the probability of the first one, which keeps its digits however small it is; odds near the
 * probability 1 have a slope so large that the product counts.
 */
function softplusSum(x: Tensor): Tensor {
  const { size, device } = x;
  const logits = cat([reshape(x, [size, 1]), device.zeros([size, 1])], { axis: 1 });
  const second = device.tensor(new Int32Array(size).fill(1), [size]);
  return crossEntropy(logits, second, { reduction: 'sum' });
}

/**
 * log(p / (1 - p)) for p = e^-u. As u goes to 0, 1 - e^-u loses all of its digits; it is
 * tanh(u / 2) times 1 + e^-u, which loses none.
 */
function logOdds(u: Tensor): Tensor {
  const loss = maximum(u, u.device.full([], LEAST_LOSS));
  const rest = add(log(tanh(affine(loss, 0.5, 0))), log(affine(exp(affine(loss, -1, 0)), 1, 1)));
  return affine(add(loss, rest), -1, 0);
}

/** The number of pairs. */
function requirePairs(op: string, { chosen, rejected }: AnswerPairs, numbers: PairNumbers): number {
  const [count] = chosen.shape;
  const sizes = [rejected.size, numbers.chosen.length, numbers.rejected.length];
  if (chosen.rank !== 1 || rejected.rank !== 1 || !count || sizes.some((size) => size !== count)) {
    throw new ShapeError(
      `${op}: expected chosen and rejected [pairs] and two numbers for each pair, got [${chosen.shape.join(', ')}], [${rejected.shape.join(', ')}], ${numbers.chosen.length} and ${numbers.rejected.length} numbers.`,
    );
  }
  return count;
}
