// The end of a rank's run: what it has trained is written, and shown by a text.

import { join } from 'node:path';
import type { Trace } from '@shardweave/tensor-core';
import { resultOf } from '../files/run-files.js';
import { leaveModel } from '../model/leave-model.js';
import { trainedFiles } from '../model/write-trained.js';
import { describeSystemError } from '../system-error.js';
import type { EmitRankEvent, RankEvent } from './events.js';
import type { OpenedRank } from './open-rank.js';
import { showText } from './show-text.js';
import type { Trained } from './train-rank.js';

/** Writes the model and shows what it has learnt. Collective. */
export async function leaveResults(run: OpenedRank, trained: Trained): Promise<void> {
  const { options } = run;
  await leaveModelOf(run, trained);
  try {
    await showText(run);
  } catch (error) {
    options.signal.throwIfAborted();
    if (options.rank === 0) {
      options.emit(textLeftOut(error));
    }
  }
}

/** What is told of a text that failed behind a model that is there. */
export function textLeftOut(error: unknown): Extract<RankEvent, { type: 'warning' }> {
  const { message } = error as Error;
  return { type: 'warning', text: `The text at the end is left out: ${message}` };
}

/** Writes the model. */
export async function leaveModelOf({ options }: OpenedRank, trained: Trained): Promise<void> {
  const { config, rank, emit } = options;
  const { state, final, saves } = trained;
  if (rank === 0) {
    emit({ type: 'final', final });
  }
  if (rank === 0 && config.out !== undefined) {
    emit({ type: 'doing', what: 'writing the model' });
    const files = await trainedFiles({ config, state });
    const isThere = await leaveModel(join(config.out, resultOf(config)), files, options);
    if (isThere) {
      await saves?.removeOwn().catch((error: unknown) => {
        emit({ type: 'warning', text: `A save can't be removed (${describeSystemError(error)}).` });
      });
    }
  }
}

/**
 * Emits the trace with times since the epoch, which all processes share; each has a clock of its
 * own.
 */
export function emitTrace(emit: EmitRankEvent, trace: Trace): void {
  const { timeOrigin } = performance;
  const events = trace.events.map((event) => ({
    ...event,
    startMs: event.startMs + timeOrigin,
    endMs: event.endMs + timeOrigin,
  }));
  emit({ type: 'trace', rank: trace.rank, events });
}
