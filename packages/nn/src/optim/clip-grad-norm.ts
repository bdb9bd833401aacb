// The norm of all gradients and the factor that bounds it, both left on the device as data: nothing
// waits. The optimizer applies the factor as its gradScale, so gradients are not touched.

import { affine, isTensor, minimum, reciprocal, sqrt, Tensor } from '@shardweave/tensor-core';
import { atLeast, checkOptions, type OptionRules, optional, shown } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { isSharded } from '../parameter-place.js';
import { flatHomeOf } from '../residence/flat-home.js';
import { flatsOf, nameOf } from './flat-plan.js';

/** PyTorch's guard against a division by zero. */
const NORM_EPSILON = 1e-6;

/** Handles that are read lazily; they belong to the scope around the call, or to the caller. */
export interface GradNorm {
  /** f32 [1]: the 2-norm of all gradients, unscaled, before clipping. */
  readonly norm: Tensor;
  /** f32 [1]: what gradients are to be multiplied by; pass it to the optimizer as gradScale. */
  readonly scale: Tensor;
}

export interface GradNormOptions {
  /** Factor that undoes a loss scale (LossScaler.unscale). Part of norm and scale. Default 1. */
  readonly unscale?: number;
}

const RULES: OptionRules<GradNormOptions> = { unscale: optional(atLeast(0)) };

/**
 * The norm over all parameters' gradients, tied and packed ones once, and the factor min(1, maxNorm /
 * (norm + 1e-6)). Without gradients the norm is 0.
 * @param maxNorm 0 or Infinity: no clipping
 * @throws {NnConfigError} for sharded parameters, whose norm is that of all ranks, and for gradients
 * that rest off the device
 */
export function clipGradNorm(
  parameters: Iterable<Tensor>,
  maxNorm: number,
  options: GradNormOptions = {},
): GradNorm {
  const list = listOf(parameters);
  const { device } = requireSome(list);
  requireWhole(list);
  return device.scope(() => gradNormOf(squaredGradNorm(list), maxNorm, options));
}

/**
 * As clipGradNorm, but multiplies the gradients themselves by the factor.
 * @returns the norm, before clipping
 */
export function clipGradNormInPlace(
  parameters: Iterable<Tensor>,
  maxNorm: number,
  options: GradNormOptions = {},
): Tensor {
  const list = listOf(parameters);
  const { device } = requireSome(list);
  return device.scope(() => {
    const { norm, scale } = clipGradNorm(list, maxNorm, options);
    scaleGradients(list, scale);
    return norm;
  });
}

/**
 * The factor of clipGradNorm on the host, for a norm that it knows: min(1, maxNorm / (norm + 1e-6)).
 * @param maxNorm 0 or Infinity: no clipping
 */
export function clipCoefficient(norm: number, maxNorm: number): number {
  requireBound(maxNorm);
  return isUnbounded(maxNorm) ? 1 : Math.min(1, maxNorm / (norm + NORM_EPSILON));
}

/**
 * Multiplies the gradients of all parameters, tied and packed ones once, by `factor`, f32 [1]. Of
 * sharded ones it scales this rank's part, so the factor is to be equal on all ranks.
 */
export function scaleGradients(parameters: Iterable<Tensor>, factor: Tensor): void {
  for (const gradient of gradientsOf(listOf(parameters))) {
    multiplyInPlace(gradient, factor);
  }
}

/**
 * The sum of all gradients' squares on this device, f32 [1]. Of sharded parameters it is this rank's
 * part, which a wrapper adds over ranks before it calls gradNormOf.
 */
export function squaredGradNorm(parameters: Iterable<Tensor>): Tensor {
  const list = listOf(parameters);
  const { device } = requireSome(list);
  const out = device.zeros([1]);
  for (const gradient of gradientsOf(list)) {
    addSquaredNorm(out, gradient);
  }
  return out;
}

/** out [1] += the sum of a gradient's squares. */
export function addSquaredNorm(out: Tensor, gradient: Tensor): void {
  const call = { x: gradient.view(), out: out.view(), accumulate: true };
  out.device.backend.run('squaredNorm', call);
}

/** Norm and factor from the sum of squares, [1]. */
export function gradNormOf(
  squared: Tensor,
  maxNorm: number,
  options: GradNormOptions = {},
): GradNorm {
  checkOptions('clipGradNorm', options, RULES);
  const { unscale = 1 } = options;
  requireBound(maxNorm);
  const { device } = squared;
  return device.noGrad(() =>
    device.scope(() => {
      const norm = affine(sqrt(squared), unscale, 0);
      if (isUnbounded(maxNorm)) {
        return { norm, scale: device.full([1], unscale) };
      }
      const factor = affine(reciprocal(affine(norm, 1, NORM_EPSILON)), maxNorm, 0);
      return { norm, scale: affine(minimum(factor, device.full([1], 1)), unscale, 0) };
    }),
  );
}

function requireBound(maxNorm: number): void {
  if (!(maxNorm >= 0)) {
    throw new NnConfigError(`clipGradNorm: expected maxNorm of at least 0, got ${maxNorm}.`);
  }
}

function listOf(parameters: Iterable<Tensor>): Tensor[] {
  const isIterable = typeof Object(parameters)[Symbol.iterator] === 'function';
  const list = isIterable ? [...parameters] : undefined;
  if (list?.every(isTensor)) {
    return list;
  }
  throw new NnConfigError(
    `clipGradNorm: expected parameters, such as module.parameters(), got ${shown(list ?? parameters)}.`,
  );
}

function requireWhole(parameters: readonly Tensor[]): void {
  const part = parameters.find(isSharded);
  if (part === undefined) {
    return;
  }
  throw new NnConfigError(
    `clipGradNorm: expected parameters that this rank has whole, got ${nameOf(part)} of a flat parameter over ${part.piece?.numShards ?? 'several'} ranks. Each would get the norm of its own part and scale by another factor. Use the function of whoever sharded them, such as clipGradNorm of @shardweave/fsdp.`,
  );
}

function isUnbounded(maxNorm: number): boolean {
  return maxNorm === 0 || maxNorm === Number.POSITIVE_INFINITY;
}

function gradientsOf(parameters: readonly Tensor[]): Tensor[] {
  const flats = flatsOf(parameters);
  if (flats.some((flat) => flatHomeOf(flat)?.hasGradient)) {
    throw new NnConfigError(
      'clipGradNorm: expected gradients on the device, got some that rest on the host. Use streamedSquaredGradNorm and streamedScaleGradients, or the norm of their wrapper.',
    );
  }
  const gradients = flats.flatMap((flat) => flat.grad ?? []);
  return gradients.filter((gradient) => gradient.size > 0);
}

/** x *= factor [1], in runs that the device can bind. */
export function multiplyInPlace(x: Tensor, factor: Tensor): void {
  const { backend } = x.device;
  const run = Math.floor(backend.info.limits.maxViewBytes / 1024) * 256; // 256-byte steps, any dtype
  for (let start = 0; start < x.size; start += run) {
    const size = Math.min(run, x.size - start);
    const part = new Tensor(x.storage, [size], x.offset + start).view();
    backend.run('binary', {
      kind: 'mul',
      a: part,
      b: factor.view(),
      out: part,
      shape: [size],
      aStrides: [1],
      bStrides: [0],
    });
  }
}

/** The first of some parameters. */
export function requireSome(parameters: readonly Tensor[]): Tensor {
  const [first] = parameters;
  if (first === undefined) {
    throw new NnConfigError('clipGradNorm: expected at least one parameter, got none.');
  }
  return first;
}
