// How a rank that fails lets the others know: they would wait for its part until their time is over.

import type { ProcessGroup } from '@shardweave/collectives';
import { DdpStructureError } from './errors.js';

/**
 * Ends the job because of `error`, unless all ranks have the same error anyway or the job has ended:
 * the others' calls reject with an error that names this rank and has the message.
 * @param operation what failed, for example 'ddp forward'
 */
export function endJob(group: ProcessGroup, operation: string, error: unknown): void {
  if (group.worldSize === 1 || error instanceof DdpStructureError) {
    return;
  }
  const reason = error instanceof Error ? error.message : String(error);
  group.abort(`${operation} failed on rank ${group.rank}/${group.worldSize}: ${reason}`);
}

/** Runs `body`; where it fails, the job ends. */
export async function endingJob<T>(
  group: ProcessGroup,
  operation: string,
  body: () => Promise<T>,
): Promise<T> {
  try {
    return await body();
  } catch (error) {
    endJob(group, operation, error);
    throw error;
  }
}
