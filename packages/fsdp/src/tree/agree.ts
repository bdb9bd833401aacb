// Runs a part of a collective call that may fail on one rank alone: all ranks learn of it, so that
// none waits for one that has given up.

import {
  agree as agreeInGroup,
  agreeOnTexts,
  type PartOutcome,
  type ProcessGroup,
  type RankFailure,
} from '@shardweave/collectives';
import { StateDictError } from '@shardweave/nn';
import { FsdpRankFailedError } from '../errors.js';
import { exchangeCall } from '../ranks/call-identity.js';
import type { TreeInstance } from './tree-instance.js';

/**
 * Runs `body` on every rank. Collectives inside go through `share`. A rank that failed takes no
 * further part in them; the others learn that at the next one.
 * @throws what body threw on this rank, else {FsdpRankFailedError} naming the rank where it threw
 */
export async function agree<T>(
  fsdp: TreeInstance,
  operation: string,
  body: () => Promise<T>,
): Promise<T> {
  let result: T;
  try {
    result = await body();
  } catch (error) {
    if (!(error instanceof FsdpRankFailedError)) {
      await settle(fsdp, operation, messageOf(error)).catch(() => undefined);
    }
    throw error;
  }
  await settle(fsdp, operation, '');
  return result;
}

/**
 * Makes a collective within the body of `agree`, unless some rank has failed.
 * @throws {FsdpRankFailedError} naming that rank
 */
export async function share<T>(
  fsdp: TreeInstance,
  operation: string,
  collective: () => Promise<T>,
): Promise<T> {
  await settle(fsdp, operation, '');
  return collective();
}

/**
 * Checks that every rank and replica makes the call with the same `text`. Where `make` throws on
 * one rank, all learn of it.
 * @throws what `make` threw on this rank, {FsdpRankFailedError} where it threw on another, or
 * {StateDictError} naming the ranks whose text differs
 */
export async function agreeOnText(
  fsdp: TreeInstance,
  operation: string,
  make: () => string | Promise<string>,
): Promise<void> {
  let thrown: { readonly error: unknown } | undefined;
  let own: PartOutcome;
  try {
    own = { text: await make() };
  } catch (error) {
    thrown = { error };
    own = { failure: messageOf(error) };
  }
  for (const group of [fsdp.processGroup, fsdp.replicateGroup]) {
    if (group === undefined) {
      continue;
    }
    const texts = await agreeOnTexts(group, own, exchangeCall(operation));
    if ('reason' in texts) {
      own = { failure: texts.reason }; // it goes on to the other replicas, too
      thrown ??= { error: failureOf(group, operation, texts) };
      continue;
    }
    const ranks = texts.flatMap((text, rank) => (text === texts[0] ? [] : [rank]));
    if (ranks.length === 0) {
      continue;
    }
    own = { failure: 'ranks of another replica differ' };
    thrown = {
      error: new StateDictError(
        `${operation}: expected the same names and values on all ranks, got others on rank ${ranks.join(', ')} than on rank 0. Nothing is loaded: read one file on every rank, or send rank 0's to all.`,
      ),
    };
  }
  if (thrown !== undefined) {
    throw thrown.error;
  }
}

/** Tells all ranks whether this one has failed. */
async function settle(
  { processGroup }: TreeInstance,
  operation: string,
  reason: string,
): Promise<void> {
  const failure = await agreeInGroup(processGroup, reason, exchangeCall(operation));
  if (failure !== undefined) {
    throw failureOf(processGroup, operation, failure);
  }
}

function failureOf(
  group: ProcessGroup,
  operation: string,
  failure: RankFailure,
): FsdpRankFailedError {
  return new FsdpRankFailedError(
    `${operation}: rank ${failure.rank}/${group.worldSize} failed: ${failure.reason}. This rank stopped with it.`,
    { operation, ...failure },
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error && error.message !== '' ? error.message : String(error);
}
