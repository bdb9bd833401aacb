// How the other ranks learn that one has failed, where they wait for its part.
//
// Note [a rank that fails]
// A rank that cannot make the collective which is due makes an empty one in its place, whose
// identity tells what failed. Ranks that failed alike, as all do for a wrong input, meet there and
// go on. A rank that did not fail is at another call, so the job is aborted with the failed rank's
// number and its reason. Digits are left out of the comparison, because ranks that fail alike often
// differ in them.

import { CollectiveAbortedError } from '../errors.js';
import type { ProcessGroup } from './process-group.js';

/**
 * The number of characters that are compared; ranks whose texts differ only after them failed
 * alike.
 */
const MAX_COMPARED = 240;

/**
 * The milliseconds by which ranks that fail alike may lie apart. After that, a rank that met nobody
 * ends the job.
 */
const MEET_MS = 30_000;

/** Matches the text of the abort, to whose end third ranks add who told them. */
const TOLD = /^(.+?) failed on rank \d+\/\d+: (.*?)(?: \(told by rank \d+\))?$/s;

/**
 * What a rank told the others by tellFailure before the job ended, as toldFailure reads it from the
 * error.
 */
export interface ToldFailure {
  /** The world rank that failed. */
  readonly rank: number;
  readonly operation: string;
  /** The code or name of its error, and its text. */
  readonly reason: string;
}

/**
 * Makes the empty call in place of what this rank cannot do; resolves when all ranks have failed
 * alike, or the job has ended. See Note [a rank that fails].
 * @param operation what failed, for example 'ddp forward'
 */
export async function tellFailure(
  group: ProcessGroup,
  operation: string,
  error: unknown,
): Promise<void> {
  const { rank, worldSize } = group;
  if (worldSize === 1) {
    return;
  }
  const reason = reasonOf(error);
  const compared = reason.replaceAll(/\d+/g, '#').slice(0, MAX_COMPARED);
  const options = {
    tag: 'failure',
    identity: `failed in ${operation}: ${compared}`,
    elseAbort: `${operation} failed on rank ${rank}/${worldSize}: ${reason}`,
    timeoutMs: MEET_MS,
  };
  await group.barrier(options).catch(() => undefined);
}

/**
 * Reads, from the error of a job that such a rank has ended, what that rank told; undefined for any
 * other error.
 */
export function toldFailure(error: unknown): ToldFailure | undefined {
  if (!(error instanceof CollectiveAbortedError)) {
    return undefined;
  }
  const found = TOLD.exec(error.reason);
  return found === null
    ? undefined
    : { rank: error.originRank, operation: found[1]!, reason: found[2]! };
}

/** The error's code or name, and its text. */
function reasonOf(error: unknown): string {
  const { name, message, code } = (error ?? {}) as Partial<Error> & { readonly code?: unknown };
  const kind = typeof code === 'string' ? code : name === 'Error' ? undefined : name;
  const words = [kind, message ?? String(error)];
  return words.filter((word) => word !== undefined && word !== '').join(': ');
}
