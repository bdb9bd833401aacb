// Agreement outside a step: each rank does its part, which may fail on one rank alone, and then all
// go on, or all hear who failed, so that none waits for one that has given up. Callers make the
// errors, in their own words.

import { type ExchangeCall, exchangeTexts } from './exchange-texts.js';
import type { ProcessGroup } from './process-group.js';

/** The first of the ranks that failed to do their part, and what it told of it. */
export interface RankFailure {
  readonly rank: number;
  readonly reason: string;
}

/** How a rank's part ended: with a text for all ranks, or in a failure. */
export type PartOutcome = { readonly text: string } | { readonly failure: string };

/**
 * Tells all ranks whether this one's part has failed. Collective, at the cost of exchangeTexts.
 * @param reason why it failed; '' where it did not
 * @returns the first rank that failed, the same on all ranks; undefined where none did
 */
export async function agree(
  group: ProcessGroup,
  reason: string,
  call: ExchangeCall,
): Promise<RankFailure | undefined> {
  const reasons = await exchangeTexts(group, reason, call);
  const rank = reasons.findIndex((text) => text !== '');
  return rank < 0 ? undefined : { rank, reason: reasons[rank]! };
}

/**
 * As agree, where each part also ends with a text for all ranks.
 * @returns every rank's text, in rank order, or the first rank that failed
 */
export async function agreeOnTexts(
  group: ProcessGroup,
  own: PartOutcome,
  call: ExchangeCall,
): Promise<readonly string[] | RankFailure> {
  const texts: string[] = [];
  for (const told of await exchangeTexts(group, JSON.stringify(own), call)) {
    const outcome = JSON.parse(told) as PartOutcome;
    if ('failure' in outcome) {
      return { rank: texts.length, reason: outcome.failure };
    }
    texts.push(outcome.text);
  }
  return texts;
}
