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
 * Whether an error is this rank's own: neither a report of a process group, nor a mistake that all
 * ranks make alike.
 */
export function isLocalFailure(error: unknown): boolean {
  const shared = [CollectiveError, PeerFailedError, FsdpError];
  return !shared.some((kind) => error instanceof kind);
}

/** The text of an abort, which ranks do not compare. */
export function failureText(operation: string, error: unknown): string {
  return `failed in ${operation}: ${error instanceof Error ? error.message : String(error)}`;
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
