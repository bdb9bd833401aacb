// Layer normalization over the last axis (Ba, Kiros and Hinton, 2016).

import { gradientPlace } from '../autograd/gradient-place.js';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import {
  isSameShape,
  requireBindable,
  requireFloat,
  requireSameDevice,
  shapeText,
} from './checks.js';

/**
 * (x - mean) / sqrt(variance + eps) * weight + bias along the last axis, biased variance, f32
 * inside.
 * @param options.weight [cols] @param options.bias [cols] @param options.eps default 1e-5
 */
export function layerNorm(
  x: Tensor,
  options: { readonly weight?: Tensor; readonly bias?: Tensor; readonly eps?: number } = {},
): Tensor {
  checkNames('layerNorm', options, ['weight', 'bias', 'eps']);
  const { weight, bias, eps = 1e-5 } = options;
  const affine = [weight, bias].filter((tensor) => tensor !== undefined);
  requireFloat('layerNorm', x, ...affine);
  requireSameDevice('layerNorm', x, ...affine);
  requireBindable('layerNorm', x);
  const cols = x.shape.at(-1) ?? 0;
  if (cols === 0) {
    throw new ShapeError(
      `layerNorm: expected a non-empty last axis, got ${shapeText(x.shape)}. It normalizes along that axis.`,
    );
  }
  for (const tensor of affine) {
    if (!isSameShape(tensor.shape, [cols])) {
      throw new ShapeError(
        `layerNorm: expected weight and bias of shape [${cols}] (x is ${shapeText(x.shape)}), got ${shapeText(tensor.shape)}.`,
      );
    }
  }
  const rows = x.size / cols;
  return x.device.scope(() => normalize(x, { weight, bias, eps, rows, cols }));
}

function normalize(
  x: Tensor,
  options: {
    readonly weight: Tensor | undefined;
    readonly bias: Tensor | undefined;
    readonly eps: number;
    readonly rows: number;
    readonly cols: number;
  },
): Tensor {
  const { weight, bias, eps, rows, cols } = options;
  const { device } = x;
  const out = device.empty(x.shape, { dtype: x.dtype });
  const mean = device.empty([rows]);
  const rstd = device.empty([rows]);
  if (rows > 0) {
    device.run('layerNorm', {
      x: x.view(),
      weight: weight?.view(),
      bias: bias?.view(),
      out: out.view(),
      mean: mean.view(),
      rstd: rstd.view(),
      rows,
      cols,
      eps,
    });
  }
  device.record({
    name: 'layerNorm',
    inputs: [x, weight, bias].filter((tensor) => tensor !== undefined),
    outputs: [out],
    saved: [x, mean, rstd, ...(weight === undefined ? [] : [weight])],
    backward: ([dy], needs) => {
      const common = {
        x: x.view(),
        mean: mean.view(),
        rstd: rstd.view(),
        dy: dy!.view(),
        rows,
        cols,
      };
      let dx: Tensor | undefined;
      if (needs[0]) {
        dx = device.empty(x.shape, { dtype: x.dtype });
        if (rows > 0) {
          device.run('layerNormBackward', {
            ...common,
            weight: weight?.view(),
            dx: dx.view(),
          });
        }
      }
      const gradientFor = (tensor: Tensor | undefined, isNeeded: boolean | undefined) => {
        if (tensor === undefined || isNeeded !== true) {
          return undefined;
        }
        const { shape, dtype } = tensor;
        return rows === 0 ? device.zeros(shape, { dtype }) : gradientPlace(tensor);
      };
      const dWeight = gradientFor(weight, needs[1]);
      const dBias = gradientFor(bias, needs[weight === undefined ? 1 : 2]);
      if (rows > 0 && (dWeight !== undefined || dBias !== undefined)) {
        device.run('layerNormParamGrad', {
          ...common,
          dWeight: dWeight?.view(),
          dBias: dBias?.view(),
        });
      }
      return [
        dx,
        ...(weight === undefined ? [] : [dWeight]),
        ...(bias === undefined ? [] : [dBias]),
      ];
    },
  });
  return out;
}
