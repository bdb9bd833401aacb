// The norm of all gradients and the factor that clips it. Both stay on the device, so nothing
// waits. The optimizer takes the factor as its gradScale, and the gradients themselves stay as they
// are.

import { isTensor, Tensor } from '@shardweave/tensor-core';
import { atLeast, checkOptions, type OptionRules, optional, shown } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import type { FlatPlace } from '../flat/layout/flat-layout.js';
import { flatsOf, nameOf, placesByFlat } from '../flat/layout/flat-plan.js';
import { isSharded } from '../flat/placement.js';
import { flatHomeOf } from '../flat/stores/flat-home.js';
import { encodeNodes, normParameters, planNodes } from './grad-nodes.js';

/** What PyTorch adds to the norm against a division by zero, rounded to f32. */
const NORM_EPSILON = Math.fround(1e-6);
/**
 * The smallest normal f32. Some devices flush smaller numbers to zero, so a smaller bound or factor
 * counts as 0 everywhere.
 */
const SMALLEST_NORMAL = 2 ** -126;

/**
 * Norm and factor as tensors that are read only on demand. The scope around the call owns them or,
 * without one, the caller.
 */
export interface GradNorm {
  /** The 2-norm of all gradients before clipping, without the loss scale; f32 [1]. */
  readonly norm: Tensor;
  /** The factor for the gradients, f32 [1]. Pass it to the optimizer as gradScale. */
  readonly scale: Tensor;
}

/** Options of clipGradNorm. */
export interface GradNormOptions {
  /**
   * The factor that undoes a loss scale (LossScaler.unscale). Both norm and scale contain it.
   * Default 1.
   */
  readonly unscale?: number;
}

const RULES: OptionRules<GradNormOptions> = { unscale: optional(atLeast(0)) };

/**
 * Computes the 2-norm of all gradients and the factor min(1, maxNorm / (norm + 1e-6)) that clips
 * it. A tied parameter counts once, and the norm is 0 where there are no gradients. The last bits
 * of the norm depend on the order of the parameters; in the order of module.parameters() they are
 * those that fsdp and offload get.
 * @param maxNorm the largest norm that is left alone; 0 or Infinity turns clipping off
 * @throws {NnConfigError} for no parameters, for a negative maxNorm, for sharded parameters, whose
 * norm needs all ranks, and for gradients that rest off the device
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
 * Computes the same as clipGradNorm, and multiplies the gradients themselves by the factor.
 * @returns the norm before clipping, f32 [1]
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
 * Computes the factor of clipGradNorm on the host from a norm that the host knows: min(1, maxNorm /
 * (norm + 1e-6)). It is the same f32 as the device's.
 * @param maxNorm the largest norm that is left alone; 0 or Infinity turns clipping off
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
 * Multiplies the gradients of these parameters by `factor`, f32 [1]; that of a tied parameter only
 * once. Other parameters that share a flat with them keep their gradients. Of a sharded parameter
 * it scales this rank's part, so the factor must be equal on all ranks.
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

/**
 * The sum of the squares of all gradients, f32 [1], added up in the order of Note [order of a
 * norm].
 */
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

/** @throws {NnConfigError} where `parameters` is not an iterable of tensors */
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

/** @throws {NnConfigError} where other ranks have parts of a parameter */
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

/** Multiplies x by factor [1] in some places, in runs that are small enough for one binding. */
export function multiplyInPlace(x: Tensor, factor: Tensor, places: readonly FlatPlace[]): void {
  const { backend } = x.device;
  const run = Math.floor(backend.info.limits.maxViewBytes / 1024) * 256; // whole 256 bytes, any dtype
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

/** The first parameter of a list that must not be empty. */
function requireSome(parameters: readonly Tensor[]): Tensor {
  const [first] = parameters;
  if (first === undefined) {
    throw new NnConfigError('clipGradNorm: expected at least one parameter, got none.');
  }
  return first;
}
