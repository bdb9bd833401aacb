// Norm and scaling of gradients that may rest off the device (FlatHome).

import type { Tensor } from '@shardweave/tensor-core';
import { listOf, multiplyInPlace, requireWhole } from './clip-grad-norm.js';
import { eachGradient } from './each-gradient.js';
import { placesByFlat } from './flat-plan.js';
import { gradNodes } from './grad-nodes.js';
import { joinNormValues, normOfRoots } from './norm-tree.js';

/**
 * The norm over all gradients wherever they rest: the bits of clipGradNorm's norm. normType is 2,
 * Infinity for the largest magnitude, or another power above 0. Waits for the device. 0 without
 * gradients, not finite where one is not.
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

/** As scaleGradients, wherever gradients rest. */
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
