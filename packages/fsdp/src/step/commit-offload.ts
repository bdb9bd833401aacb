// Commits what rests in stores as a generation of its own, outside an optimizer's step.

import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { instanceOf } from '../tree/instance.js';
import { homeStepsOf, homesOf } from '../tree/stored-instance.js';

/**
 * Writes what a full disk has refused, and commits the stores of an instance and those below it.
 * Call it after a load or an edit: otherwise a process that resumes finds the change only if a step
 * has ended since. It commits this rank's stores alone.
 */
export async function commitOffload(fsdp: FullyShardedDataParallel): Promise<void> {
  await fsdp.initialize();
  fsdp.assertState('idle');
  const instances = instanceOf(fsdp).instances();
  for (const home of homesOf(instances)) {
    await home.flush();
  }
  for (const steps of homeStepsOf(instances)) {
    await steps.commit();
  }
}
