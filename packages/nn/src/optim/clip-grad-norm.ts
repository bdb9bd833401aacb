// The norm of all gradients and the factor that bounds it, both left on the device as data: nothing
// waits. The optimizer applies the factor as its gradScale, so gradients are not touched.

import { isTensor, Tensor } from '@shardweave/tensor-core';
import { atLeast, checkOptions, type OptionRules, optional, shown } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import type { FlatPlace } from '../flat/flat-layout.js';
import { flatHomeOf } from '../flat/homes/flat-home.js';
import { isSharded } from '../parameter-place.js';
import { flatsOf, nameOf, placesByFlat } from './flat-plan.js';
import { encodeNodes, normParameters, planNodes } from './grad-nodes.js';

/** PyTorch's guard against a division by zero, as f32 has it. */
const NORM_EPSILON = Math.fround(1e-6);
/** Below it devices may flush, so a bound or factor there is 0 on all of them. */
const SMALLEST_NORMAL = 2 ** -126;

/** Handles that are read lazily; they belong to the scope around the call, or to the caller. */
export interface GradNorm {
  /** f32 [1]: the 2-norm of all gradients, unscaled, before clipping. */
  readonly norm: Tensor;
  /** f32 [1]: what gradients are to be multiplied by; pass it to the optimizer as gradScale. */
  readonly scale: Tensor;
}

/** Options of clipGradNorm. */
export interface GradNormOptions {
  /** Factor that undoes a loss scale (LossScaler.unscale). Part of norm and scale. Default 1. */
  readonly unscale?: number;
}

const RULES: OptionRules<GradNormOptions> = { unscale: optional(atLeast(0)) };

/**
 * The norm over all parameters' gradients, tied ones once, and the factor min(1, maxNorm / (norm +
 * 1e-6)). Without gradients the norm is 0. Its last bits depend on the order of the parameters:
 * module.parameters() is the one that fsdp and offload have too.
 * @param maxNorm 0 or Infinity: no clipping
 * @throws {NnConfigError} for sharded parameters, whose norm is that of all ranks, and for
 * gradients that rest off the device
 */
export function clipGradNorm(
  parameters: Iterable<Tensor>,
  maxNorm: number,
  options: GradNormOptions = {},
): GradNorm {
  const list = listOf(parameters);
  const { device } = requireSome(list);
  requireWhole(list);
  checkOptions('clipGradNorm', options, RULES);
  requireBound(maxNorm);
  requireResident(list);
  return device.scope(() => {
    const [norm, scale] = [device.empty([1]), device.empty([1])];
    device.backend.run('clipFactor', {
      squares: squaredGradNorm(list).view(),
      norm: norm.view(),
      scale: scale.view(),
      maxNorm: maxNorm === 0 ? Infinity : maxNorm,
      unscale: options.unscale ?? 1,
    });
    return { norm, scale };
  });
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
 * The factor of clipGradNorm on the host, for a norm that it knows: min(1, maxNorm / (norm +
 * 1e-6)), the same f32.
 * @param maxNorm 0 or Infinity: no clipping
 */
export function clipCoefficient(norm: number, maxNorm: number): number {
  requireBound(maxNorm);
  if (maxNorm === 0 || maxNorm === Infinity) {
    return 1;
  }
  const bound = maxNorm < SMALLEST_NORMAL ? 0 : Math.fround(maxNorm);
  const ratio = bound / Math.fround(Math.fround(norm) + NORM_EPSILON);
  return Math.min(1, ratio < SMALLEST_NORMAL ? 0 : Math.fround(ratio));
}

/**
 * Multiplies the gradients of these parameters, tied ones once, by `factor`, f32 [1]; others that
 * share a flat with them stay as they are. Of sharded ones it scales this rank's part, so the
 * factor is to be equal on all ranks.
 */
export function scaleGradients(parameters: Iterable<Tensor>, factor: Tensor): void {
  const list = listOf(parameters);
  requireResident(list);
  for (const [{ grad }, places] of placesByFlat(list)) {
    if (grad !== undefined) {
      multiplyInPlace(grad, factor, places);
    }
  }
}

/** The sum of all gradients' squares, f32 [1], in the order of Note [order of a norm]. */
function squaredGradNorm(list: readonly Tensor[]): Tensor {
  const { device } = list[0]!;
  const parameters = normParameters(list);
  const plan = planNodes(parameters);
  if (plan.slotCount === 0) {
    return device.zeros([1]);
  }
  const hasAll = [...plan.flats.keys()].every(({ grad }) => grad !== undefined);
  const slots = hasAll ? device.empty([plan.slotCount]) : device.zeros([plan.slotCount]);
  for (const flat of plan.flats.keys()) {
    const gradient = flat.grad;
    if (gradient !== undefined) {
      encodeNodes(plan, flat, { gradient, slots, power: 2 });
    }
  }
  const { backend } = device;
  const [roots, total] = [device.empty([parameters.length]), device.empty([1])];
  const trees = plan.parts.map(({ slot, nodes }) => ({ start: slot, length: nodes.length }));
  backend.run('normTree', { x: slots.view(), out: roots.view(), spans: trees, isMax: false });
  const all = [{ start: 0, length: parameters.length }];
  backend.run('normTree', { x: roots.view(), out: total.view(), spans: all, isMax: false });
  return total;
}

function requireBound(maxNorm: number): void {
  if (!(maxNorm >= 0)) {
    throw new NnConfigError(`clipGradNorm: expected maxNorm of at least 0, got ${maxNorm}.`);
  }
}

/** @throws {NnConfigError} for what is not a list of tensors */
export function listOf(parameters: Iterable<Tensor>): Tensor[] {
  const isIterable = typeof Object(parameters)[Symbol.iterator] === 'function';
  const list = isIterable ? [...parameters] : undefined;
  if (list?.every(isTensor)) {
    return list;
  }
  throw new NnConfigError(
    `clipGradNorm: expected parameters, such as module.parameters(), got ${shown(list ?? parameters)}.`,
  );
}

/** @throws {NnConfigError} where another rank has part of a parameter */
export function requireWhole(parameters: readonly Tensor[]): void {
  const part = parameters.find(isSharded);
  if (part === undefined) {
    return;
  }
  throw new NnConfigError(
    `clipGradNorm: expected parameters that this rank has whole, got ${nameOf(part)} of a flat parameter over ${part.piece?.numShards ?? 'several'} ranks. Each would get the norm of its own part and scale by another factor. Use the function of whoever sharded them, such as clipGradNorm of @shardweave/fsdp.`,
  );
}

function requireResident(parameters: readonly Tensor[]): void {
  if (flatsOf(parameters).some((flat) => flatHomeOf(flat)?.hasGradient)) {
    throw new NnConfigError(
      'clipGradNorm: expected gradients on the device, got some that rest on the host. Use streamedGradNorm and streamedScaleGradients, or the norm of their wrapper.',
    );
  }
}

/** x *= factor [1] in some places, in runs that the device can bind. */
export function multiplyInPlace(x: Tensor, factor: Tensor, places: readonly FlatPlace[]): void {
  const { backend } = x.device;
  const run = Math.floor(backend.info.limits.maxViewBytes / 1024) * 256; // 256-byte steps, any dtype
  for (const { start: first, length } of places) {
    for (let start = first; start < first + length; start += run) {
      const size = Math.min(run, first + length - start);
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
}

/** The first of some parameters. */
function requireSome(parameters: readonly Tensor[]): Tensor {
  const [first] = parameters;
  if (first === undefined) {
    throw new NnConfigError('clipGradNorm: expected at least one parameter, got none.');
  }
  return first;
}
