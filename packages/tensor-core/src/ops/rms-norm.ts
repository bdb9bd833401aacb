// Root mean square normalization over the last axis (Zhang and Sennrich, 2019).

import { gradientPlace } from '../autograd/gradient-place.js';
import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireNormRows, requireSummands } from './checks.js';

export interface RmsNormOptions {
  /** [cols]. Absent: ones. */
  readonly weight?: Tensor;
  /** Added to the weight: 1 where it is stored as its distance from one, as Gemma's is. Default 0. */
  readonly weightOffset?: number;
  /** Default 1e-6. */
  readonly eps?: number;
}

/** A sum and its normalized rows. */
export interface NormedSum {
  readonly sum: Tensor;
  readonly norm: Tensor;
}

/** x / sqrt(mean(x^2) + eps) * (weight + weightOffset) along the last axis, f32 inside. */
export function rmsNorm(x: Tensor, options: RmsNormOptions = {}): Tensor {
  return x.device.scope(() => normalize('rmsNorm', x, undefined, options).norm);
}

/**
 * x + residual, and its rmsNorm, by one kernel each way: what a block of a transformer begins with.
 * Both have one shape and dtype.
 */
export function addRmsNorm(
  x: Tensor,
  options: RmsNormOptions & { readonly residual: Tensor },
): NormedSum {
  const { residual, ...rest } = options;
  requireSummands('addRmsNorm', x, residual);
  return x.device.scope(() => normalize('addRmsNorm', x, residual, rest));
}

function normalize(
  op: string,
  x: Tensor,
  residual: Tensor | undefined,
  options: RmsNormOptions,
): NormedSum {
  checkNames(op, options, ['weight', 'weightOffset', 'eps']);
  const { weight, weightOffset = 0, eps = 1e-6 } = options;
  const parameters = weight === undefined ? [] : [weight];
  const { rows, cols } = requireNormRows(op, x, parameters);
  const { device, dtype } = x;
  const norm = device.empty(x.shape, { dtype });
  const sum = residual === undefined ? x : device.empty(x.shape, { dtype });
  const rstd = device.empty([rows]);
  if (rows > 0) {
    device.run('rmsNorm', {
      x: x.view(),
      residual: residual?.view(),
      sum: residual === undefined ? undefined : sum.view(),
      weight: weight?.view(),
      weightOffset,
      out: norm.view(),
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
    saved: [sum, rstd, ...parameters],
    backward: ([dy, dSum], needs) => {
      if (dy === undefined) {
        return summands.map(() => dSum); // only the sum was used
      }
      const needsInput = summands.some((_, i) => needs[i]);
      const needsWeight = needs[summands.length] === true;
      const dx = needsInput ? device.empty(x.shape, { dtype }) : undefined;
      const dWeight = !needsWeight
        ? undefined
        : rows === 0
          ? device.zeros([cols], { dtype: weight!.dtype })
          : gradientPlace(weight!);
      if (rows > 0 && (needsInput || needsWeight)) {
        device.run('rmsNormBackward', {
          x: sum.view(),
          weight: weight?.view(),
          weightOffset,
          rstd: rstd.view(),
          dy: dy.view(),
          dSum: dSum?.view(),
          dx: dx?.view(),
          dWeight: dWeight?.view(),
          rows,
          cols,
        });
      }
      return [...summands.map(() => dx), ...parameters.map(() => dWeight)];
    },
  });
  return { sum, norm };
}
