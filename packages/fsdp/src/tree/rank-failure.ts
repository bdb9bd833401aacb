// Tells the other ranks that this one has failed alone: `tellFailure` of collectives reaches them
// where they wait for it.

import {
  CollectiveError,
  PeerFailedError,
  type ProcessGroup,
  tellFailure,
} from '@shardweave/collectives';
import { FsdpError } from '../errors.js';

/**
 * Aborts the group after a failure of this rank alone: other ranks may be waiting for its messages,
 * and no collective call would tell them. It does nothing after a report of a process group, or a
 * mistake that all ranks make alike.
 */
export function abortAlone(group: ProcessGroup, operation: string, error: unknown): void {
  const shared = [CollectiveError, PeerFailedError, FsdpError];
  if (!shared.some((kind) => error instanceof kind)) {
    group.abort(
      `failed in ${operation}: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/**
 * Runs `work`, which makes this rank's part of the next collective call of `group`. Where it
 * throws, the other ranks learn of it in place of that call.
 * @throws what `work` throws, when the other ranks know
 */
export async function abortOnError<T>(
  group: ProcessGroup,
  operation: string,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await tellFailure(group, operation, error);
    throw error;
  }
}
