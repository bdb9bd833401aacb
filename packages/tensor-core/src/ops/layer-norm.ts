// Layer normalization over the last axis (Ba, Kiros and Hinton, 2016).

import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireSummands } from './checks.js';
import { type Normalization, type NormedSum, normalizeRows } from './normed-rows.js';

/**
 * Options of layerNorm: the scale and shift of each column, and what keeps the root away from 0.
 */
export interface LayerNormOpOptions {
  /** The scale of each column, [cols]. Without it columns are not scaled. */
  readonly weight?: Tensor;
  /** What is added to each column, [cols]. Without it nothing is. */
  readonly bias?: Tensor;
  /** A number that is added to the variance under the root. The default is 1e-5. */
  readonly eps?: number;
}

/**
 * (x - mean) / sqrt(variance + eps) * weight + bias along the last axis of x [..., cols], of x's
 * shape and dtype. The variance is the biased one; everything is computed in f32.
 * @throws {ShapeError} when the last axis is empty or the parameters are not [cols]
 * @throws {DTypeError} when an operand is no float tensor
 */
export function layerNorm(x: Tensor, options: LayerNormOpOptions = {}): Tensor {
  return x.device.scope(() => normalize('layerNorm', x, options, {}).norm);
}

/**
 * x + residual and the layerNorm of that sum, by one kernel in forward and one for all gradients in
 * backward. x and residual have one shape and one dtype. Without a residual the sum is x itself;
 * whatever else uses x should take it from the result, so that its gradient is added in the same
 * backward kernel.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when an operand is no float tensor, or x and residual differ in dtype
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
      device.run('layerNorm', {
        x: call.x,
        residual: call.residual,
        sum: call.sum,
        weight: weight?.view(),
        bias: bias?.view(),
        out: call.out,
        mean: mean!,
        rstd: rstd!,
        rows: call.rows,
        cols: call.cols,
        eps,
      });
    },
    backward: (call, { stats: [mean, rstd], dSum, dx, gradients }) => {
      const dWeight = weight === undefined ? undefined : gradients[0];
      const dBias = bias === undefined ? undefined : gradients.at(-1);
      device.run('layerNormBackward', {
        x: call.x,
        weight: weight?.view(),
        mean: mean!,
        rstd: rstd!,
        dy: call.dy,
        dSum,
        dx,
        dWeight,
        dBias,
        rows: call.rows,
        cols: call.cols,
      });
    },
  };
  return normalizeRows(op, x, { ...summed, kernels });
}
