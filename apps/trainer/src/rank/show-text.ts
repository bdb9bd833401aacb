// Shows what the model writes, in the middle of a run and at its end.

import { loadTokenizer } from '../data/tokenizer.js';
import type { RunConfig } from '../run-config.js';
import { isLanguage } from '../task/task-head.js';
import { languageConfig } from '../task/text-config.js';
import type { OpenedRank, RankOptions } from './open-rank.js';
import { gatheredBytes, sampleLength, sampleText } from './sample-text.js';
import type { TaskStrategy } from './strategies/strategy.js';

const NO_TEXT =
  'No text is written: each of its tokens would gather the whole model. The command generate writes one.';

interface ShowTextOptions extends Pick<OpenedRank, 'device'> {
  readonly options: Pick<RankOptions, 'config' | 'rank' | 'emit' | 'wrapUp'>;
  readonly strategy: Pick<TaskStrategy, 'module' | 'text'>;
}

/**
 * Shows a text of the model as it is, unless that takes too long; training may then go on.
 * Collective.
 */
export async function showText({ options, device, strategy }: ShowTextOptions): Promise<void> {
  const { config, rank, emit, wrapUp } = options;
  const { text } = strategy;
  const isWanted = !config.quiet || config.sampleEvery !== undefined;
  if (!isLanguage(config.head.kind) || !isWanted || (rank > 0 && text.group === undefined)) {
    return;
  }
  const maxTokens = sampleLength(languageConfig(config.modelConfig), {
    gatheredBytes: gatheredBytes(config, text),
    trainedTokens: config.steps * config.batch * config.seq,
  });
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
