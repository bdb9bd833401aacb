// nn's norm of all gradients and clipping by it, over the shards of all ranks.

import { clipCoefficient, streamedScaleGradients, streamedSquaredGradNorm } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError } from './errors.js';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';

/**
 * The 2-norm of all gradients, each parameter once. Collective; waits for the device. 0 without
 * gradients, not finite where one is not.
 */
export async function gradNorm(fsdp: FullyShardedDataParallel): Promise<number> {
  await fsdp.initialize();
  fsdp.assertState('idle');
  const { device, processGroup } = fsdp;
  const foreign = fsdp.instances().find((instance) => instance.processGroup !== processGroup);
  if (foreign !== undefined) {
    throw new FsdpConfigError(
      `gradNorm: expected all instances in one process group, got '${foreign.name}' in another. Parameters that differ by rank (experts) have no common norm here: clip them apart.`,
    );
  }
  const flats = shards(fsdp);
  if (flats.length === 0) return 0;
  const bytes = await device.scope(async () => (await streamedSquaredGradNorm(flats)).toBytes());
  const squared = new Float32Array(new Uint8Array(bytes).buffer);
  if (processGroup.worldSize > 1) {
    const wire = new Uint8Array(squared.buffer);
    await processGroup.allReduce(wire, wire, { dtype: 'f32', op: 'sum', tag: 'gradNorm' });
  }
  return Math.sqrt(squared[0]!);
}

/**
 * Scales all gradients so that their norm is at most maxNorm, and returns the norm before. As
 * gradNorm otherwise.
 * @param maxNorm 0 or Infinity: no clipping
 */
export async function clipGradNorm(
  fsdp: FullyShardedDataParallel,
  maxNorm: number,
): Promise<number> {
  const norm = await gradNorm(fsdp);
  const factor = clipCoefficient(norm, maxNorm);
  const { device } = fsdp;
  if (factor < 1) {
    await device.scope(() => streamedScaleGradients(shards(fsdp), device.full([1], factor)));
  }
  return norm;
}

/** Flat shards, whose gradients are this rank's. */
function shards(fsdp: FullyShardedDataParallel): Tensor[] {
  return fsdp.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
}
