// The head's loss over some of the classes, for devices that each have a part of a frozen weight.

import { checkOptions } from '../check-options.js';
import { FLAG, type OptionRules } from '../options.js';
import type { Tensor } from '../tensor.js';
import { fillLosses, HEAD_RULES, type HeadOptions, headOf } from './head-losses.js';

/** Options of linearCrossEntropyPart, as linearCrossEntropy has them. */
export interface LinearCrossEntropyPartOptions extends HeadOptions {
  /** Whether to compute the slopes, too. Default false. */
  readonly hasSlopes?: boolean;
}

const PART_RULES: OptionRules<LinearCrossEntropyPartOptions> = { hasSlopes: FLAG, ...HEAD_RULES };

/** What some of the classes tell about each row of x. All tensors are f32 and outside the graph. */
export interface LinearCrossEntropyPart {
  /** The logarithm of the sum of exp(logit) over these classes, [...]. */
  readonly logSumExp: Tensor;
  /** logSumExp minus the target's logit, [...]; 0 where the target is none of these classes. */
  readonly losses: Tensor;
  /** The gradient of each logSumExp with respect to its row of x, [..., dim]. */
  readonly slopes: Tensor | undefined;
}

/**
 * linearCrossEntropy over some of the classes, for devices that each have a part of a frozen
 * weight: with these of all parts, each row's logSumExp over all classes is that of the parts'
 * logSumExps, and its gradient is the sum of their slopes, each times exp(logSumExp of the part -
 * logSumExp of all). Targets count from the first class of this part.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when x or the weight is no float tensor, or the targets are no integers
 */
export function linearCrossEntropyPart(
  x: Tensor,
  targets: Tensor,
  options: LinearCrossEntropyPartOptions,
): LinearCrossEntropyPart {
  const op = 'linearCrossEntropyPart';
  checkOptions<LinearCrossEntropyPartOptions>(op, options, PART_RULES);
  const head = headOf(op, x, { ...options, targets });
  const { device } = x;
  return device.scope(() => {
    const logSumExp = device.empty(targets.shape);
    const losses = device.empty(targets.shape);
    const slopes = options.hasSlopes === true ? device.empty(x.shape) : undefined;
    const filled = { losses, lse: logSumExp, kept: undefined, dx: slopes, isPart: true };
    device.scope(() => fillLosses(head, filled));
    return { logSumExp, losses, slopes };
  });
}
