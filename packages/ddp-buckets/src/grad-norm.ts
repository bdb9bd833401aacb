// Norms of reduced gradients, and clipping by them, alike on all ranks.
//
// Reduced gradients have the same bits on all ranks, and so has their norm within a numeric class.
// Ranks of several classes may round the norm differently, and replicas that are scaled by
// different factors drift apart, so all of them take rank 0's norm.

import { clipCoefficient, streamedGradNorm, streamedScaleGradients } from '@shardweave/nn';
import type { DistributedDataParallel } from './distributed-data-parallel.js';
import { serial } from './ranks/tell-others.js';

/**
 * The norm of all gradients, with equal bits on all ranks. 0 without gradients; not finite where an
 * element is not. Waits for the device. It is collective where ranks are of several numeric
 * classes, and sends nothing elsewhere.
 */
export async function gradNorm(ddp: DistributedDataParallel): Promise<number> {
  await ddp.initialize();
  const norm = await streamedGradNorm(ddp.parameters());
  if (ddp.numericClasses.length < 2) {
    return norm;
  }
  const group = ddp.processGroup;
  const words = Float64Array.of(norm);
  const bytes = new Uint8Array(words.buffer);
  const options = { root: 0, tag: 'ddp gradNorm', identity: 'ddp gradNorm' } as const;
  await group.starts.enqueue(
    Promise.resolve(),
    () => group.broadcast(bytes, options),
    serial(group, 'ddp gradNorm'),
  );
  return words[0]!;
}

/**
 * Scales all gradients so that their norm is at most `maxNorm`, and returns the norm that they had
 * before. It is collective where gradNorm is.
 * @param maxNorm 0 or Infinity: no clipping
 */
export async function clipGradNorm(ddp: DistributedDataParallel, maxNorm: number): Promise<number> {
  const norm = await gradNorm(ddp);
  const factor = clipCoefficient(norm, maxNorm);
  const { device } = ddp;
  if (factor < 1) {
    await device.scope(() => streamedScaleGradients(ddp.parameters(), device.full([1], factor)));
  }
  return norm;
}
