// How a rank that fails tells the other ranks, which would otherwise wait for its part until they
// time out.

import { type ProcessGroup, type StartOptions, tellFailure } from '@shardweave/collectives';
import { DdpStructureError } from '../errors.js';

/**
 * Takes the place of the collective that this rank cannot make. Ranks that failed alike meet there
 * and may go on; on any rank that makes another call, the job ends with this rank's number and
 * reason. It is not for errors that all ranks find together.
 * @param operation the call that failed, for example 'ddp forward'
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

/** Options for several collective calls one after another, of which one may fail. */
export function serial(group: ProcessGroup, operation: string): StartOptions {
  return { isSerial: true, failed: (error) => tellOthers(group, operation, error) };
}
