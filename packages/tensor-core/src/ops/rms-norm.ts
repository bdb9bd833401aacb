// Root mean square normalization over the last axis (Zhang and Sennrich, 2019).

import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireSummands } from './checks.js';
import { type Normalization, type NormedSum, normalizeRows } from './normed-rows.js';

/** Options of rmsNorm: the scale of each column, and what keeps the root away from 0. */
export interface RmsNormOptions {
  /** The scale of each column, [cols]. Without it columns are not scaled. */
  readonly weight?: Tensor;
  /**
   * A number that is added to the weight. It is 1 for models that store the weight as its distance
   * from one, as Gemma does. The default is 0.
   */
  readonly weightOffset?: number;
  /** A number that is added to the mean of squares under the root. The default is 1e-6. */
  readonly eps?: number;
}

/**
 * x / sqrt(mean(x^2) + eps) * (weight + weightOffset) along the last axis of x [..., cols], of x's
 * shape and dtype, computed in f32.
 * @throws {ShapeError} when the last axis is empty or the weight is not [cols]
 * @throws {DTypeError} when an operand is no float tensor
 */
export function rmsNorm(x: Tensor, options: RmsNormOptions = {}): Tensor {
  return x.device.scope(() => normalize('rmsNorm', x, options, {}).norm);
}

/**
 * x + residual and the rmsNorm of that sum, by one kernel in forward and one for all gradients in
 * backward; a transformer's block begins with the two. x and residual have one shape and one dtype.
 * Without a residual the sum is x itself; whatever else uses x should take it from the result, so
 * that its gradient is added in the same backward kernel.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when an operand is no float tensor, or x and residual differ in dtype
 */
export function addRmsNorm(
  x: Tensor,
  options: RmsNormOptions & { readonly residual?: Tensor | undefined },
): NormedSum {
  const { residual, ...rest } = options;
  if (residual !== undefined) {
    requireSummands('addRmsNorm', x, residual);
  }
  const summed = { residual, isForked: true };
  return x.device.scope(() => normalize('addRmsNorm', x, rest, summed));
}

function normalize(
  op: string,
  x: Tensor,
  options: RmsNormOptions,
  summed: { readonly residual?: Tensor | undefined; readonly isForked?: boolean },
): NormedSum {
  checkNames(op, options, ['weight', 'weightOffset', 'eps']);
  const { weight, weightOffset = 0, eps = 1e-6 } = options;
  const parameters = weight === undefined ? [] : [weight];
  const { device } = x;
  const kernels: Normalization = {
    parameters,
    saved: parameters,
    numStats: 1,
    forward: (call, [rstd]) => {
      device.run('rmsNorm', { ...call, weight: weight?.view(), weightOffset, rstd: rstd!, eps });
    },
    backward: (call, { stats: [rstd], dSum, dx, gradients: [dWeight] }) => {
      const given = { ...call, weight: weight?.view(), weightOffset, rstd: rstd! };
      device.run('rmsNormBackward', { ...given, dSum, dx, dWeight });
    },
  };
  return normalizeRows(op, x, { ...summed, kernels });
}
