// What a run's record begins with, by which anybody can compute its steps again: the configuration
// as it was decided, what the data and the base were, and what the ranks' devices compute like.

import { exchangeTexts } from '@shardweave/collectives';
import type { Resumed } from '../saves/resume-run.js';
import { tokensOf } from '../saves/saved-run.js';
import type { OpenedRank } from './open-rank.js';
import { hashOf } from './strategies/model-saves.js';
import type { Hashed } from './train-loop.js';

const CALL = { tag: 'record', identity: 'record' };

/**
 * Tells what the steps begin with, where the run has a record. Collective.
 * @returns what hashes the state after a step; undefined where nobody asks for hashes
 */
export async function beginRecord(
  { options, groups, strategy, resuming }: OpenedRank,
  from: { readonly resumed: Resumed | undefined; readonly numericClass: string },
): Promise<(() => Promise<Hashed>) | undefined> {
  const { config, rank, emit } = options;
  const { out, hashEvery, again } = config;
  const isHashed = hashEvery !== undefined || again !== undefined;
  const isRecorded = out !== undefined && again === undefined;
  if (!isHashed && !isRecorded) {
    return undefined;
  }
  const classes = await exchangeTexts(groups.gather, from.numericClass, CALL);
  const numericClasses = [...new Set(classes)].sort();
  if (isRecorded) {
    const hash = isHashed ? await hashOf(strategy) : undefined;
    if (rank === 0) {
      const save = from.resumed?.save;
      const { base, tiles } = resuming;
      const start = { step: save?.step ?? 0, from: save?.path, numericClasses, hash, base, tiles };
      emit({ type: 'start', start: { ...start, tokens: tokensOf(config), config: { ...config } } });
    }
  }
  const numericClass = numericClasses.join(' and ');
  return isHashed ? async () => ({ hash: await hashOf(strategy), numericClass }) : undefined;
}
