// Layer normalization over the last axis (Ba, Kiros and Hinton, 2016).

import { gradientPlace } from '../autograd/gradient-place.js';
import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireNormRows, requireSummands } from './checks.js';
import type { NormedSum } from './rms-norm.js';

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
  return x.device.scope(() => normalize('layerNorm', x, undefined, options).norm);
}

/**
 * x + residual, and its layerNorm, by one kernel forward and one for both inputs backward. Both have one
 * shape and dtype.
 */
export function addLayerNorm(
  x: Tensor,
  options: LayerNormOpOptions & { readonly residual: Tensor },
): NormedSum {
  const { residual, ...rest } = options;
  requireSummands('addLayerNorm', x, residual);
  return x.device.scope(() => normalize('addLayerNorm', x, residual, rest));
}

function normalize(
  op: string,
  x: Tensor,
  residual: Tensor | undefined,
  options: LayerNormOpOptions,
): NormedSum {
  checkNames(op, options, ['weight', 'bias', 'eps']);
  const { weight, bias, eps = 1e-5 } = options;
  const parameters = [weight, bias].filter((tensor) => tensor !== undefined);
  const { rows, cols } = requireNormRows(op, x, parameters);
  const { device, dtype } = x;
  const norm = device.empty(x.shape, { dtype });
  const sum = residual === undefined ? x : device.empty(x.shape, { dtype });
  const mean = device.empty([rows]);
  const rstd = device.empty([rows]);
  if (rows > 0) {
    device.run('layerNorm', {
      x: x.view(),
      residual: residual?.view(),
      sum: residual === undefined ? undefined : sum.view(),
      weight: weight?.view(),
      bias: bias?.view(),
      out: norm.view(),
      mean: mean.view(),
      rstd: rstd.view(),
      rows,
      cols,
      eps,
    });
  }
  const summands = residual === undefined ? [x] : [x, residual];
  device.record({
    name: op,
    inputs: [...summands, ...parameters],
    outputs: residual === undefined ? [norm] : [norm, sum],
    saved: [sum, mean, rstd, ...(weight === undefined ? [] : [weight])],
    backward: ([dy, dSum], needs) => {
      if (dy === undefined) {
        return summands.map(() => dSum); // only the sum was used
      }
      const common = {
        x: sum.view(),
        mean: mean.view(),
        rstd: rstd.view(),
        dy: dy.view(),
        rows,
        cols,
      };
      let dx: Tensor | undefined;
      if (summands.some((_, i) => needs[i])) {
        dx = device.empty(x.shape, { dtype });
        if (rows > 0) {
          device.run('layerNormBackward', {
            ...common,
            weight: weight?.view(),
            dSum: dSum?.view(),
            dx: dx.view(),
          });
        }
      }
      const gradients = parameters.map((parameter, i) => {
        if (needs[summands.length + i] !== true) {
          return undefined;
        }
        const { shape, dtype: own } = parameter;
        return rows === 0 ? device.zeros(shape, { dtype: own }) : gradientPlace(parameter);
      });
      const dWeight = weight === undefined ? undefined : gradients[0];
      const dBias = bias === undefined ? undefined : gradients.at(-1);
      if (rows > 0 && (dWeight !== undefined || dBias !== undefined)) {
        device.run('layerNormParamGrad', {
          ...common,
          dWeight: dWeight?.view(),
          dBias: dBias?.view(),
        });
      }
      return [...summands.map(() => dx), ...gradients];
    },
  });
  return { sum, norm };
}
