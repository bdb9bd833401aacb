// What a newcomer does before it is part of a job, so that the others don't wait for it: a group of
// rows on its own. A GPU's kernels are compiled in it, which takes seconds, and memory is there.

import { createMemoryGroup } from '@shardweave/collectives';
import { gradNorm } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import type { PreparedRun } from '../../run-config.js';
import { openObjective } from '../objectives/open-objective.js';
import type { Opened } from './elastic-options.js';

/** Computes the gradients of the run's first rows, and frees them. */
export async function warmUp(
  device: Device,
  config: PreparedRun,
  { data, replica: { model: module, optimizer }, own }: Pick<Opened, 'data' | 'replica' | 'own'>,
): Promise<void> {
  const [world] = createMemoryGroup(1);
  const groups = { gather: world!, reduce: world! };
  const objective = openObjective({ device, module, config, groups, own });
  await device.scope(async () => {
    const batch = await data.train.microBatch(0, 0, 0);
    device.random.begin({ step: 0, rowOffset: batch.firstRow });
    const loss = await objective.backward(batch, { scale: 1, onPhase: () => {} });
    await loss.toArray();
    await gradNorm(module);
  });
  optimizer.zeroGrad();
}
