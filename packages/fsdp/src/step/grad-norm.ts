// nn's norms of all gradients and clipping by them, over the shards of all ranks. Computed in f32
// whatever gradients are; over replicas of shards nothing is added, for they hold the same.

import {
  clipCoefficient,
  streamedGradPower,
  streamedScaleGradients,
  streamedSquaredGradNorm,
} from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError, FsdpStateError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { collectiveCall } from '../tree/collective-call.js';
import { callIdentity } from '../tree/explained.js';
import { orTell } from '../tree/rank-failure.js';

export interface GradNormOptions {
  /** 2, Infinity for the largest magnitude, or another power above 0. Default 2. */
  readonly normType?: number;
}

/**
 * The norm of all gradients, each parameter once, wherever they rest. Collective; waits for the
 * device. 0 without gradients, not finite where one is not.
 * @throws {FsdpStateError} on an inner instance, or unless idle
 * @throws {FsdpConfigError} for instances of another process group, and a normType not above 0
 */
export async function gradNorm(
  fsdp: FullyShardedDataParallel,
  options: GradNormOptions = {},
): Promise<number> {
  const call = { operation: 'gradNorm', states: ['idle'] } as const;
  return collectiveCall(fsdp, call, () => normOf(fsdp, options, 'gradNorm'));
}

async function normOf(
  fsdp: FullyShardedDataParallel,
  { normType = 2 }: GradNormOptions,
  operation: string,
): Promise<number> {
  checkNorm(fsdp, normType);
  const flats = shards(fsdp);
  if (flats.length === 0) {
    return 0;
  }
  const power = await orTell(fsdp.processGroup, operation, () =>
    normType === 2 ? squares(fsdp) : streamedGradPower(flats, normType),
  );
  const total = await overRanks(fsdp, power, { normType, operation });
  if (normType === Number.POSITIVE_INFINITY) {
    return total;
  }
  return normType === 2 ? Math.sqrt(total) : total ** (1 / normType);
}

/**
 * Scales all gradients so that their norm is at most maxNorm, and returns the norm before. As
 * gradNorm otherwise.
 * @param maxNorm 0 or Infinity: no clipping
 */
export async function clipGradNorm(
  fsdp: FullyShardedDataParallel,
  maxNorm: number,
  options: GradNormOptions = {},
): Promise<number> {
  const call = { operation: 'clipGradNorm', states: ['idle'] } as const;
  return collectiveCall(fsdp, call, async () => {
    const norm = await normOf(fsdp, options, 'clipGradNorm');
    const factor = clipCoefficient(norm, maxNorm);
    const { device } = fsdp;
    if (factor < 1) {
      await device.scope(() => streamedScaleGradients(shards(fsdp), device.full([1], factor)));
    }
    return norm;
  });
}

/** Flat shards of an instance and those below it, whose gradients are this rank's. */
function shards(fsdp: FullyShardedDataParallel): Tensor[] {
  return fsdp.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
}

async function squares(fsdp: FullyShardedDataParallel): Promise<number> {
  return fsdp.device.scope(async () => (await streamedSquaredGradNorm(shards(fsdp))).item());
}

async function overRanks(
  { processGroup }: FullyShardedDataParallel,
  power: number,
  { normType, operation }: { readonly normType: number; readonly operation: string },
): Promise<number> {
  if (processGroup.worldSize === 1) {
    return power;
  }
  const op = normType === Number.POSITIVE_INFINITY ? 'max' : 'sum';
  const value = Float32Array.of(power);
  const wire = new Uint8Array(value.buffer);
  const identity = callIdentity(operation);
  await processGroup.allReduce(wire, wire, { dtype: 'f32', op, tag: 'gradNorm', identity }); // keeps NaN
  return value[0]!;
}

function checkNorm(fsdp: FullyShardedDataParallel, normType: number): void {
  const { processGroup } = fsdp;
  if (!fsdp.isRoot) {
    throw new FsdpStateError(
      `gradNorm: expected the root instance, got inner instance '${fsdp.name}'. A norm is that of the whole model.`,
    );
  }
  if (!(normType > 0)) {
    throw new FsdpConfigError(`gradNorm: expected normType above 0, got ${normType}.`);
  }
  const foreign = fsdp.instances().find((instance) => instance.processGroup !== processGroup);
  if (foreign !== undefined) {
    throw new FsdpConfigError(
      `gradNorm: expected all instances in one process group, got '${foreign.name}' in another. Parameters that differ by rank (experts) have no common norm here: clip them apart.`,
    );
  }
}
