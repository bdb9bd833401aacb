// Agreement outside a step: each rank does its part, which may fail on one rank alone, and then all
// go on, or all hear who failed, so that none waits for one that has given up.

import { withoutStop } from '@shardweave/dtypes/messages';
import { PeerFailedError } from '../errors.js';

/** Gives every rank's text, in rank order. Collective; mostly exchangeTexts over a group. */
export type Exchange = (text: string) => Promise<readonly string[]>;

/** The first of the ranks that failed to do their part, and what it told of it. */
export interface RankFailure {
  readonly rank: number;
  readonly worldSize: number;
  readonly reason: string;
}

/** How a rank's part ended: with a text for all ranks, or in a failure. */
export type PartOutcome = { readonly text: string } | { readonly failure: string };

/**
 * Runs `own` on every rank. Collective. Before each collective inside `own` stands an agreement
 * whose part does nothing: a rank that failed takes no further part, and there the others hear of
 * it. A part that may fail does not stand inside another one, or its rank would tell of it twice.
 * @param operation the name of the call in errors
 * @throws what `own` threw on this rank, else {PeerFailedError} naming the first rank where it did
 */
export async function agree<T>(
  operation: string,
  exchange: Exchange,
  own: () => T | Promise<T>,
): Promise<T> {
  let result: T;
  try {
    result = await own();
  } catch (error) {
    if (!(error instanceof PeerFailedError)) {
      await settle(operation, exchange, reasonOf(error)).catch(() => undefined);
    }
    throw error;
  }
  await settle(operation, exchange, '');
  return result;
}

/** Tells all ranks whether this one has failed. */
async function settle(operation: string, exchange: Exchange, reason: string): Promise<void> {
  const reasons = await exchange(reason);
  const rank = reasons.findIndex((text) => text !== '');
  if (rank >= 0) {
    throw failed(operation, { rank, worldSize: reasons.length, reason: reasons[rank]! });
  }
}

/**
 * Tells all ranks how this one's part has ended.
 * @returns every rank's text, in rank order, or the first rank that failed
 */
export async function agreeOnTexts(
  exchange: Exchange,
  own: PartOutcome,
): Promise<readonly string[] | RankFailure> {
  const told = await exchange(JSON.stringify(own));
  const texts: string[] = [];
  for (const text of told) {
    const outcome = JSON.parse(text) as PartOutcome;
    if ('failure' in outcome) {
      return { rank: texts.length, worldSize: told.length, reason: outcome.failure };
    }
    texts.push(outcome.text);
  }
  return texts;
}

/**
 * Checks that every rank makes the same text. Collective.
 * @param exchanges one over each set of ranks: over those of a replica, then over replicas
 * @param text.differing makes the error where the texts of these ranks differ from that of rank 0
 * @throws what `make` threw on this rank, {PeerFailedError} where it threw on another, else what
 * `differing` made
 */
export async function requireSameText(
  operation: string,
  exchanges: readonly Exchange[],
  text: { make(): string | Promise<string>; differing(ranks: readonly number[]): Error },
): Promise<void> {
  let thrown: { readonly error: unknown } | undefined;
  let own: PartOutcome;
  try {
    own = { text: await text.make() };
  } catch (error) {
    thrown = { error };
    own = { failure: reasonOf(error) };
  }
  for (const exchange of exchanges) {
    const texts = await agreeOnTexts(exchange, own);
    if ('reason' in texts) {
      own = { failure: texts.reason }; // it goes on to the other replicas, too
      thrown ??= { error: failed(operation, texts) };
      continue;
    }
    const ranks = texts.flatMap((other, rank) => (other === texts[0] ? [] : [rank]));
    if (ranks.length > 0) {
      own = { failure: 'ranks of another replica differ' };
      thrown = { error: text.differing(ranks) };
    }
  }
  if (thrown !== undefined) {
    throw thrown.error;
  }
}

function failed(operation: string, failure: RankFailure): PeerFailedError {
  const { rank, worldSize, reason } = failure;
  return new PeerFailedError(
    `${operation}: rank ${rank}/${worldSize} failed: ${withoutStop(reason)}. This rank stopped with it.`,
    { operation, rank, reason },
  );
}

function reasonOf(error: unknown): string {
  return error instanceof Error && error.message !== '' ? error.message : String(error);
}
