// A part of a collective call that may fail on one rank alone: all of them learn of it, so that none
// waits for one that has given up.

import { type FsdpError, FsdpStateDictError } from './errors.js';
import { exchangeText } from './exchange-text.js';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';

/**
 * Runs `body` on every rank. Collectives inside go through `share`, which a failed rank takes part in
 * no more: it is told at the next one.
 * @throws what body threw on this rank, else {FsdpStateDictError} naming the rank where it threw
 */
export async function agree<T>(
  fsdp: FullyShardedDataParallel,
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
    if (error instanceof OtherRankError) throw error.reported;
    await settle(fsdp, operation, messageOf(error)).catch(() => undefined);
    throw error;
  }
  await settle(fsdp, operation, '').catch((error: unknown) => {
    throw error instanceof OtherRankError ? error.reported : error;
  });
  return result;
}

class OtherRankError extends Error {
  readonly reported: FsdpError;

  constructor(reported: FsdpError) {
    super(reported.message);
    this.reported = reported;
  }
}

async function settle(
  { processGroup }: FullyShardedDataParallel,
  operation: string,
  failure: string,
): Promise<void> {
  const texts = await exchangeText(processGroup, failure, { tag: operation });
  const rank = texts.findIndex((text) => text !== '');
  if (rank < 0) return;
  throw new OtherRankError(
    new FsdpStateDictError(
      `${operation}: rank ${rank}/${processGroup.worldSize} failed: ${texts[rank]}. This rank stopped with it.`,
    ),
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error && error.message !== '' ? error.message : String(error);
}
