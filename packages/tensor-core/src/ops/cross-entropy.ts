// Cross-entropy of logits against class ids, in one kernel with the log-softmax.

import { checkOptions } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { oneOf } from '../options.js';
import { isTensor, type Tensor } from '../tensor.js';
import { cast } from './cast.js';
import {
  isSameShape,
  requireFloat,
  requireInteger,
  requireSameDevice,
  shapeText,
} from './checks.js';
import { lt } from './compare.js';
import { div, mul } from './elementwise.js';
import { mean, sum } from './reduce.js';

/**
 * Options of crossEntropy: how the losses of the targets become one, and how much each of them
 * counts.
 */
export interface CrossEntropyOptions {
  /**
   * How losses are combined: 'mean' over the targets that are not ignored (the default), 'sum', or
   * 'none', which returns one loss per target in the targets' shape. A mean where all targets are
   * ignored is 0 / 0, so it and its gradients are NaN, as PyTorch's; a sum is 0 there.
   */
  readonly reduction?: 'mean' | 'sum' | 'none';
  /**
   * What a mean divides by: the number of targets that are not ignored ('counted', the default, as
   * in PyTorch), or of all targets ('all'), so that batches of one size add up alike.
   */
  readonly divisor?: 'counted' | 'all';
  /**
   * The factor of each target's loss, floats of the targets' shape. A mean still divides by a
   * number of targets, not by the sum of the weights. By default every factor is 1.
   */
  readonly weights?: Tensor;
}

/**
 * The cross-entropy -log softmax(logits)[target] of logits [..., classes] and targets [...] (i32,
 * u32), always f32. A target that is not the id of a class, such as -100, is ignored: its loss and
 * its gradients are 0 whatever its logits are.
 * @throws {ShapeError} unless there is one target per row of logits, and one weight per target
 * @throws {DTypeError} when logits or weights are no floats, or targets are no integers
 */
export function crossEntropy(
  logits: Tensor,
  targets: Tensor,
  options: CrossEntropyOptions = {},
): Tensor {
  checkOptions<CrossEntropyOptions>('crossEntropy', options, {
    reduction: oneOf('mean', 'sum', 'none'),
    divisor: oneOf('counted', 'all'),
    weights: { expected: 'a tensor', holds: isTensor },
  });
  const { weights } = options;
  requireFloat('crossEntropy', logits);
  requireInteger('crossEntropy', targets);
  requireSameDevice('crossEntropy', logits, targets);
  const cols = logits.shape.at(-1) ?? 0;
  const rows = targets.size;
  if (cols === 0 || !isSameShape(logits.shape.slice(0, -1), targets.shape)) {
    throw new ShapeError(
      `crossEntropy: expected one target per row of logits, got logits ${shapeText(logits.shape)} and targets ${shapeText(targets.shape)}. Targets are ids, not one-hot rows.`,
    );
  }
  requireTargetWeights('crossEntropy', targets, weights);
  return logits.device.scope(() => {
    const losses = lossesOf(logits, targets, { rows, cols });
    return reduceLosses(losses, { ...options, targets, classes: cols });
  });
}

export function requireTargetWeights(
  op: string,
  targets: Tensor,
  weights: Tensor | undefined,
): void {
  if (weights === undefined) {
    return;
  }
  requireFloat(op, weights);
  requireSameDevice(op, targets, weights);
  if (!isSameShape(weights.shape, targets.shape)) {
    throw new ShapeError(
      `${op}: expected one weight per target, got targets ${shapeText(targets.shape)} and weights ${shapeText(weights.shape)}. Weights are of targets, not of classes.`,
    );
  }
}

/** Multiplies one loss per target by its weight, and reduces the products. */
export function reduceLosses(
  each: Tensor,
  options: CrossEntropyOptions & { readonly targets: Tensor; readonly classes: number },
): Tensor {
  const { weights, reduction = 'mean', divisor = 'counted', targets, classes } = options;
  const losses = weights === undefined ? each : mul(each, weights);
  if (reduction === 'none') {
    return losses;
  }
  if (reduction === 'mean' && divisor === 'all') {
    return mean(losses);
  }
  const total = sum(losses);
  return reduction === 'sum' ? total : div(total, countOf(targets, classes));
}

/** How many targets are ids of classes, f32 []. As u32 the negative ones lie above all classes. */
function countOf(targets: Tensor, classes: number): Tensor {
  return sum(cast(lt(cast(targets, 'u32'), classes), 'f32'));
}

/** One loss per row, of the targets' shape. */
function lossesOf(
  logits: Tensor,
  targets: Tensor,
  { rows, cols }: { readonly rows: number; readonly cols: number },
): Tensor {
  const { device } = logits;
  const losses = device.empty(targets.shape);
  const lse = device.empty([rows]);
  if (rows > 0) {
    device.run('crossEntropy', {
      logits: logits.view(),
      targets: targets.view(),
      loss: losses.view(),
      lse: lse.view(),
      rows,
      cols,
    });
  }
  device.record({
    name: 'crossEntropy',
    inputs: [logits],
    outputs: [losses],
    saved: [logits, targets, lse],
    backward: ([dLoss]) => {
      const dLogits = device.empty(logits.shape, { dtype: logits.dtype });
      if (rows > 0) {
        device.run('crossEntropyBackward', {
          logits: logits.view(),
          targets: targets.view(),
          lse: lse.view(),
          dLoss: dLoss!.view(),
          out: dLogits.view(),
          rows,
          cols,
        });
      }
      return [dLogits];
    },
  });
  return losses;
}
