// The norm and the scaling of gradients that may rest off the device, in a FlatHome.

import type { Tensor } from '@shardweave/tensor-core';
import { placesByFlat } from '../flat/layout/flat-plan.js';
import { listOf, multiplyInPlace, requireWhole } from './clip-grad-norm.js';
import { eachGradient } from './each-gradient.js';
import { gradNodes } from './grad-nodes.js';
import { joinNormValues, normOfRoots } from './norm-tree.js';

/**
 * Computes the norm of all gradients wherever they rest, and waits for the device. For normType 2
 * it has the same bits as the norm of clipGradNorm. It is 0 without gradients, and not finite where
 * a gradient is not.
 * @param normType 2, Infinity for the largest magnitude, or another power above 0
 * @throws {NnConfigError} for sharded parameters, and for a normType that is not above 0
 */
export async function streamedGradNorm(
  parameters: Iterable<Tensor>,
  normType = 2,
): Promise<number> {
  const list = listOf(parameters);
  requireWhole(list);
  const nodes = await gradNodes(list, normType);
  const roots = nodes.map((values) => joinNormValues(values, normType === Infinity));
  return normOfRoots(roots, normType);
}

/**
 * Does the same as scaleGradients for gradients wherever they rest, and waits for those off the
 * device.
 */
export async function streamedScaleGradients(
  parameters: Iterable<Tensor>,
  factor: Tensor,
): Promise<void> {
  const list = [...parameters];
  const places = placesByFlat(list);
  const use = (gradient: Tensor, flat: Tensor) =>
    multiplyInPlace(gradient, factor, places.get(flat) ?? []);
  await eachGradient(list, { isChanging: true, use });
}
