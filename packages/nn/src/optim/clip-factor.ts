// The factor that clips gradients: of a norm that the host knows, or of gradients on the device,
// where norm and factor stay, so that nothing waits.

import { Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import type { FlatPlace } from '../flat/layout/flat-layout.js';
import { flatsOf } from '../flat/layout/flat-plan.js';
import { flatHomeOf } from '../flat/stores/flat-home.js';
import { encodeNodes, normParameters, planNodes } from './grad-nodes.js';

/** What PyTorch adds to the norm against a division by zero, rounded to f32. */
const NORM_EPSILON = Math.fround(1e-6);
/**
 * The smallest normal f32. Some devices flush smaller numbers to zero, so a smaller bound or factor
 * counts as 0 everywhere.
 */
const SMALLEST_NORMAL = 2 ** -126;

/** Where the norm and the factor go, and what they depend on beside the gradients. */
interface ClipTargets {
  readonly norm: Tensor;
  readonly scale: Tensor;
  readonly maxNorm: number;
  readonly unscale: number;
}

/**
 * Encodes the 2-norm of gradients that are on the device, and the factor that clips it, both times
 * `unscale`. Nothing waits.
 */
export function clipOnDevice(
  parameters: readonly Tensor[],
  { norm, scale, maxNorm, unscale }: ClipTargets,
): void {
  const { device } = norm;
  device.scope(() => {
    device.backend.run('clipFactor', {
      squares: squaredGradNorm(parameters).view(),
      norm: norm.view(),
      scale: scale.view(),
      maxNorm: maxNorm === 0 ? Infinity : maxNorm,
      unscale,
    });
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

/** @throws {NnConfigError} for a bound that is none */
export function requireBound(maxNorm: number): void {
  if (!(maxNorm >= 0)) {
    throw new NnConfigError(`clipGradNorm: expected maxNorm of at least 0, got ${maxNorm}.`);
  }
}

/** Whether no gradient rests off the device. */
export function areGradientsHere(parameters: readonly Tensor[]): boolean {
  return !flatsOf(parameters).some((flat) => flatHomeOf(flat)?.hasGradient);
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
