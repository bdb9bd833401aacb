// The norm of all gradients over all ranks, and clipping by it.

import type { Tensor } from '@shardweave/tensor-core';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';

// As PyTorch's clip_grad_norm_: keeps the factor finite at norm 0.
const CLIP_EPS = 1e-6;

/**
 * The 2-norm of all gradients, each parameter once. Collective; waits for the device. 0 without
 * gradients, not finite where one is not.
 */
export async function gradNorm(fsdp: FullyShardedDataParallel): Promise<number> {
  await fsdp.initialize();
  fsdp.assertState('idle');
  const { device, processGroup } = fsdp;
  const bytes = await device.scope(() => {
    const total = device.zeros([1]);
    for (const grad of shardGradients(fsdp)) {
      device.backend.run('squaredNorm', { x: grad.view(), out: total.view(), accumulate: true });
    }
    return total.toBytes();
  });
  const squared = new Float32Array(new Uint8Array(bytes).buffer);
  if (processGroup.worldSize > 1) {
    const wire = new Uint8Array(squared.buffer);
    await processGroup.allReduce(wire, wire, { dtype: 'f32', op: 'sum', tag: 'gradNorm' });
  }
  return Math.sqrt(squared[0]!);
}

/** The factor that brings a norm to at most maxNorm: below 1, or 1. */
export function clipCoefficient(norm: number, maxNorm: number): number {
  return Math.min(1, maxNorm / (norm + CLIP_EPS));
}

/**
 * Scales all gradients so that their norm is at most maxNorm, and returns the norm before. As
 * gradNorm otherwise.
 */
export async function clipGradNorm(
  fsdp: FullyShardedDataParallel,
  maxNorm: number,
): Promise<number> {
  const norm = await gradNorm(fsdp);
  const scale = clipCoefficient(norm, maxNorm);
  if (scale < 1) {
    for (const grad of shardGradients(fsdp)) {
      const view = grad.view();
      fsdp.device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
    }
  }
  return norm;
}

function shardGradients(fsdp: FullyShardedDataParallel): Tensor[] {
  return fsdp.instances().flatMap(({ unit }) => unit?.flat.grad ?? []);
}
