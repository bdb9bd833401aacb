// A rank that fails alone: the others learn it by `tellFailure` of collectives where they wait for
// it.

import { CollectiveError, type ProcessGroup, tellFailure } from '@shardweave/collectives';
import { FsdpError } from '../errors.js';

/**
 * Whether it is this rank's own: neither what a group says, nor a mistake that all ranks make
 * alike.
 */
export function isLocalFailure(error: unknown): boolean {
  return !(error instanceof CollectiveError || error instanceof FsdpError);
}

/** For aborts, which no rank compares. */
export function failureText(operation: string, error: unknown): string {
  return `failed in ${operation}: ${error instanceof Error ? error.message : String(error)}`;
}

/**
 * What this rank brings to the next collective call of `group`.
 * @throws what `work` throws, when the other ranks know
 */
export async function orTell<T>(
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
