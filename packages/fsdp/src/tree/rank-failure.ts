// How the other ranks learn that one has failed, at once and by name.
//
// Note [a rank that fails]
// Where a rank cannot make a collective call, it makes an empty one in its place whose identity says what
// failed. Ranks that failed alike, as all do for a wrong input, meet there and go on; a rank that did not
// fail is at another call, so all get an error with that text, and the groups have ended. Digits are left
// out of the text, for ranks that fail alike often differ in them.

import { CollectiveError, type ProcessGroup } from '@shardweave/collectives';
import { FsdpError } from '../errors.js';

/** Longer texts say little more, and are in every rank's error. */
const MAX_REASON = 240;

/** What ranks compare of a failure. */
export function failureIdentity(operation: string, error: unknown): string {
  return `failed in ${operation}: ${reasonOf(error)}`;
}

/** The operation and the reason that an identity names; undefined for any other. */
export function failureIn(
  call: string,
): { readonly operation: string; readonly reason: string } | undefined {
  const found = /'failed in ([^:']+): ([^']*)'/.exec(call);
  return found === null ? undefined : { operation: found[1]!, reason: found[2]! };
}

/** Whether it is this rank's own: neither what a group says, nor a mistake that all ranks make alike. */
export function isLocalFailure(error: unknown): boolean {
  return !(error instanceof CollectiveError || error instanceof FsdpError);
}

/** For aborts, which no rank compares. */
export function failureText(operation: string, error: unknown): string {
  return `failed in ${operation}: ${error instanceof Error ? error.message : String(error)}`;
}

/** Makes the empty call in place of what this rank cannot do; returns when all have failed alike. */
export async function tellFailure(
  group: ProcessGroup,
  operation: string,
  error: unknown,
): Promise<void> {
  if (group.worldSize === 1 || error instanceof CollectiveError) {
    return;
  }
  const identity = failureIdentity(operation, error);
  await group.barrier({ tag: 'failure', identity }).catch(() => undefined);
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

function reasonOf(error: unknown): string {
  // The program's own mistake is the same on all ranks, but its words name the rank.
  if (error instanceof FsdpError) {
    return error.name;
  }
  const { name, message, code } = (error ?? {}) as Partial<Error> & { readonly code?: unknown };
  const words = [typeof code === 'string' ? code : name, message ?? String(error)];
  const text = words.filter((word) => word !== undefined && word !== '').join(': ');
  return text.replaceAll("'", '"').replaceAll(/\d+/g, '#').slice(0, MAX_REASON);
}
