// How a rank that fails lets the others know: they would wait for its part until their time is
// over.

import { type ProcessGroup, type StartOptions, tellFailure } from '@shardweave/collectives';
import { DdpStructureError } from './errors.js';

/**
 * Takes the place of the collective that this rank cannot make: ranks that failed alike meet there
 * and may go on, any other call ends the job with this rank's number and its reason. Not for what
 * all ranks find out together.
 * @param operation what failed, for example 'ddp forward'
 */
export async function tellOthers(
  group: ProcessGroup,
  operation: string,
  error: unknown,
): Promise<void> {
  if (!(error instanceof DdpStructureError)) {
    await tellFailure(group, operation, error);
  }
}

/** For collectives of several calls, one after another, that may fail between them. */
export function serial(group: ProcessGroup, operation: string): StartOptions {
  return { isSerial: true, failed: (error) => tellOthers(group, operation, error) };
}
