// Root mean square normalization over the last axis (Zhang and Sennrich, 2019).

import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireSummands } from './checks.js';
import { type Normalization, type NormedSum, normalizeRows } from './normed-rows.js';

/** Options of rmsNorm: the scale of each column, and what keeps the root away from 0. */
export interface RmsNormOptions {
  /** [cols]. Absent: ones. */
  readonly weight?: Tensor;
  /**
   * Added to the weight: 1 where it is stored as its distance from one, as Gemma's is. Default 0.
   */
  readonly weightOffset?: number;
  /** Default 1e-6. */
  readonly eps?: number;
}

/** x / sqrt(mean(x^2) + eps) * (weight + weightOffset) along the last axis, f32 inside. */
export function rmsNorm(x: Tensor, options: RmsNormOptions = {}): Tensor {
  return x.device.scope(() => normalize('rmsNorm', x, options, {}).norm);
}

/**
 * x + residual, and its rmsNorm, by one kernel each way: what a block of a transformer begins with.
 * Both have one shape and dtype. Without a residual x and its rmsNorm, whose gradients are one
 * kernel all the same.
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
