// Makes what rests in stores a generation outside an optimizer's step.

import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { homeStepsOf } from '../unit/residence.js';

/**
 * Writes what a full disk refused, and commits the stores of an instance and those below it: after
 * loads and edits, which a next process finds otherwise only once a step has ended. Of this rank.
 */
export async function commitOffload(fsdp: FullyShardedDataParallel): Promise<void> {
  await fsdp.initialize();
  fsdp.assertState('idle');
  for (const { units } of fsdp.instances()) {
    for (const { home } of units) {
      await home?.flush();
    }
  }
  for (const steps of homeStepsOf(fsdp.instances())) {
    await steps.commit();
  }
}
