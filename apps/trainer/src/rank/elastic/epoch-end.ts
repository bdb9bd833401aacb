// What ranks of an elastic job do together when steps are done: the loss of the weights, and texts,
// for which each of them may have a part of the model.

import { PeerFailedError } from '@shardweave/collectives';
import { EpochOverError } from '@shardweave/collectives/elastic';
import type { RunData } from '../../data/dataset.js';
import { dealtRows } from '../../data/dealt-rows.js';
import { textLeftOut } from '../leave-results.js';
import { showText } from '../show-text.js';
import { sumOverRanks } from '../strategies/sum-over-ranks.js';
import type { Reached } from '../train-loop.js';
import { lossOfEnd } from '../train-rank.js';
import type { AtWork } from './at-work.js';
import type { ElasticRankOptions } from './elastic-options.js';

type TextOptions = Pick<ElasticRankOptions, 'device' | 'emit' | 'wrapUp' | 'signal'>;

/** The loss on the rows that would follow; see lossOfEnd. Collective. */
export function lossOfEpoch(
  work: AtWork,
  { device, train }: Pick<ElasticRankOptions, 'device'> & Pick<RunData, 'train'>,
  { step }: Reached,
) {
  const { config, groups, strategy, watch } = work;
  const { gather: group } = groups;
  const data = dealtRows(train, config);
  const parts = { config, rank: group.rank, device, strategy, group, data };
  return watch.counter.pause(() => lossOfEnd(parts, step));
}

/** Shows what the model writes. Collective where a rank has but a part of it. */
export async function showEpochText(work: AtWork, options: TextOptions): Promise<void> {
  const { config, groups, strategy, watch } = work;
  const { device, emit, wrapUp } = options;
  const { rank } = groups.gather;
  const parts = { options: { config, rank, emit, wrapUp }, device, strategy };
  await watch.counter.pause(() => showText(parts));
}

/**
 * The same at the end, when the model is there already: what fails here ends the text alone. Where
 * that has ended the calls of this epoch, too, the next one leaves it out. Collective.
 * @param hasFailed whether it has failed here before
 * @returns whether it has failed here
 */
export async function showLastText(
  work: AtWork,
  options: TextOptions,
  hasFailed: boolean,
): Promise<boolean> {
  const { emit, signal } = options;
  if ((await sumOverRanks(Number(hasFailed), work.groups.gather, 'text')) > 0) {
    return hasFailed;
  }
  try {
    await showEpochText(work, options);
    return false;
  } catch (error) {
    signal.throwIfAborted();
    if (isEpochOver(error)) {
      throw error;
    }
    emit(textLeftOut(error));
    return true;
  }
}

/** Whether the epoch has ended, or a rank of it has told that it failed and leaves. */
export function isEpochOver(error: unknown): boolean {
  return (
    error instanceof EpochOverError ||
    error instanceof PeerFailedError ||
    (error instanceof Error && error.cause !== undefined && isEpochOver(error.cause))
  );
}
