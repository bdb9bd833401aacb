// Measures the tiles of the GPUs' products before a run that lasts, so that this run has them.

import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import type { Backend, DType } from '@shardweave/tensor-core';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';

/**
 * The fewest steps for which a GPU is measured: it is not worth it for a run that is over in
 * moments. What is measured is kept for later runs.
 */
const LEAST_STEPS = 50;
/** The milliseconds that this takes at most, besides compiling what is measured last. */
const MOST_MS = 10_000;
const CALL = { tag: 'tiles', identity: 'measured tiles' };

/**
 * Measures this rank's GPU if the rank is the first with such an adapter, while the others wait,
 * since some may share it. Collective. It does nothing for a run that goes on, whose bits other
 * tiles might not continue, nor with a driver that computes on the CPU and compiles for minutes.
 */
export async function measureProducts(
  backend: Backend,
  options: {
    readonly world: ProcessGroup;
    readonly steps: number;
    readonly isResumed: boolean;
    readonly dtype: DType;
    /** Is called before this rank measures. */
    readonly onMeasure?: () => void;
  },
): Promise<void> {
  const { world, steps, isResumed, dtype, onMeasure } = options;
  if (steps < LEAST_STEPS || isResumed) {
    return;
  }
  const { kind, isSoftware, description } = backend.info;
  const isGpu = kind === 'webgpu' && !isSoftware;
  const names = await exchangeTexts(world, isGpu ? description : '', CALL);
  if (isGpu && names.indexOf(description) === world.rank) {
    onMeasure?.();
    await (backend as WebGpuBackend).tuneMatmul({ dtypes: [dtype], mostMs: MOST_MS });
  }
  await exchangeTexts(world, '', CALL);
}
