// Runs a part of a collective call that may fail on one rank alone: all ranks learn of it, so that
// none waits for one that has given up.

import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
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
  body: (share: <S>(collective: () => Promise<S>) => Promise<S>) => Promise<T>,
): Promise<T> {
  let result: T;
  try {
    result = await body(async (collective) => {
      await settle(fsdp, operation, '');
      return collective();
    });
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
  let own: { readonly text?: string; readonly failure?: string };
  let thrown: { readonly error: unknown } | undefined;
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
    const texts = await exchangeTexts(group, JSON.stringify(own), exchangeCall(operation));
    const all = texts.map((text) => JSON.parse(text) as typeof own);
    const failed = all.findIndex(({ failure }) => failure !== undefined);
    // A failure goes on to the other replicas, too.
    if (failed >= 0) {
      own = { failure: all[failed]!.failure! };
    }
    if (failed >= 0 && thrown === undefined) {
      thrown = { error: failureOf(group, operation, { rank: failed, reason: own.failure! }) };
    }
    const ranks = texts.flatMap((text, rank) => (text === texts[0] ? [] : [rank]));
    if (failed >= 0 || ranks.length === 0) {
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

async function settle(
  { processGroup }: TreeInstance,
  operation: string,
  failure: string,
): Promise<void> {
  const texts = await exchangeTexts(processGroup, failure, exchangeCall(operation));
  const rank = texts.findIndex((text) => text !== '');
  if (rank >= 0) {
    throw failureOf(processGroup, operation, { rank, reason: texts[rank]! });
  }
}

function failureOf(
  group: ProcessGroup,
  operation: string,
  failure: { readonly rank: number; readonly reason: string },
): FsdpRankFailedError {
  return new FsdpRankFailedError(
    `${operation}: rank ${failure.rank}/${group.worldSize} failed: ${failure.reason}. This rank stopped with it.`,
    { operation, ...failure },
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error && error.message !== '' ? error.message : String(error);
}
