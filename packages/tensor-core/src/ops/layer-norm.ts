// Layer normalization over the last axis (Ba, Kiros and Hinton, 2016).

import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireSummands } from './checks.js';
import { type Normalization, type NormedSum, normalizeRows } from './normed-rows.js';

/**
 * Options of layerNorm: the scale and shift of each column, and what keeps the root away from 0.
 */
export interface LayerNormOpOptions {
  /** [cols] */
  readonly weight?: Tensor;
  /** [cols] */
  readonly bias?: Tensor;
  /** Default 1e-5. */
  readonly eps?: number;
}

/**
 * (x - mean) / sqrt(variance + eps) * weight + bias along the last axis, biased variance, f32
 * inside.
 */
export function layerNorm(x: Tensor, options: LayerNormOpOptions = {}): Tensor {
  return x.device.scope(() => normalize('layerNorm', x, options, {}).norm);
}

/**
 * x + residual, and its layerNorm, by one kernel forward and one for both inputs backward. Both
 * have one shape and dtype. Without a residual x and its layerNorm, whose gradients are one kernel
 * all the same.
 */
export function addLayerNorm(
  x: Tensor,
  options: LayerNormOpOptions & { readonly residual?: Tensor | undefined },
): NormedSum {
  const { residual, ...rest } = options;
  if (residual !== undefined) {
    requireSummands('addLayerNorm', x, residual);
  }
  const summed = { residual, isForked: true };
  return x.device.scope(() => normalize('addLayerNorm', x, rest, summed));
}

function normalize(
  op: string,
  x: Tensor,
  options: LayerNormOpOptions,
  summed: { readonly residual?: Tensor | undefined; readonly isForked?: boolean },
): NormedSum {
  checkNames(op, options, ['weight', 'bias', 'eps']);
  const { weight, bias, eps = 1e-5 } = options;
  const { device } = x;
  const kernels: Normalization = {
    parameters: [weight, bias].filter((tensor) => tensor !== undefined),
    saved: weight === undefined ? [] : [weight],
    numStats: 2,
    forward: (call, [mean, rstd]) => {
      const own = { weight: weight?.view(), bias: bias?.view(), mean: mean!, rstd: rstd!, eps };
      device.run('layerNorm', { ...call, ...own });
    },
    backward: (call, { stats: [mean, rstd], dSum, dx, gradients }) => {
      const dWeight = weight === undefined ? undefined : gradients[0];
      const dBias = bias === undefined ? undefined : gradients.at(-1);
      const given = { ...call, weight: weight?.view(), mean: mean!, rstd: rstd! };
      device.run('layerNormBackward', { ...given, dSum, dx, dWeight, dBias });
    },
  };
  return normalizeRows(op, x, { ...summed, kernels });
}
