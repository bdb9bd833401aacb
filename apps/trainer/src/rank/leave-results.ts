// The end of a rank's run: what it has trained is written, and shown by a text.

import { join } from 'node:path';
import type { Trace } from '@shardweave/tensor-core';
import { loadTokenizer } from '../data/tokenizer.js';
import { resultOf } from '../files/run-files.js';
import { leaveModel } from '../model/leave-model.js';
import { trainedFiles } from '../model/write-trained.js';
import type { RunConfig } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { languageConfig } from '../task/text-config.js';
import type { EmitRankEvent } from './events.js';
import type { OpenedRank } from './open-rank.js';
import { gatheredBytes, sampleLength, sampleText } from './sample-text.js';
import type { Trained } from './train-rank.js';

const NO_TEXT =
  'No text is written at the end: each of its tokens would gather the whole model. The command generate writes one.';

/** Writes the model and shows what it has learnt. Collective. */
export async function leaveResults(run: OpenedRank, trained: Trained): Promise<void> {
  const { options } = run;
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
  try {
    await showText(run);
  } catch (error) {
    options.signal.throwIfAborted();
    if (rank === 0) {
      const { message } = error as Error;
      emit({ type: 'warning', text: `The text at the end is left out: ${message}` });
    }
  }
}

/**
 * Shows a text of the model as it is, unless that takes too long; training may then go on.
 * Collective.
 */
export async function showText({ options, device, strategy }: OpenedRank): Promise<void> {
  const { config, rank, emit, wrapUp } = options;
  const { text } = strategy;
  const isWanted = !config.quiet || config.sampleEvery !== undefined;
  if (config.head.kind !== 'lm' || !isWanted || (rank > 0 && text.group === undefined)) {
    return;
  }
  const maxTokens = sampleLength(languageConfig(config.modelConfig), gatheredBytes(config, text));
  if (rank === 0) {
    emit(
      maxTokens === 0
        ? { type: 'warning', text: NO_TEXT }
        : { type: 'doing', what: 'writing a text' },
    );
  }
  if (maxTokens === 0) {
    return;
  }
  try {
    const sample = await sampleText(text, {
      device,
      config,
      maxTokens,
      openTokenizer: () => loadTokenizer(config.tokenizer, directoryOf(config)),
      isGivenUp: () => wrapUp.aborted,
    });
    if (sample !== undefined) {
      emit({ type: 'sample', ...sample });
    }
  } finally {
    strategy.module.train();
  }
}

function directoryOf({ model }: RunConfig): string | undefined {
  return model.kind === 'directory' ? model.path : undefined;
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
