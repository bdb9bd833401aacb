// What a run says before it begins, because it may not be the one that was meant.

import { skippedNotes } from '../data/data-source.js';
import { idleFlags } from '../flags/flag-effects.js';
import type { Flags } from '../flags/train-flags.js';
import type { RunConfig } from '../run-config.js';
import { isPreference } from '../task/task-head.js';
import { elasticNote } from './elastic-flags.js';

/** Sentences about flags, data and a model that some did not mean so. */
export function runWarnings(flags: Flags, run: RunConfig): string[] {
  const elastic = elasticNote(flags, run);
  return [...idleFlags(flags, run), ...taskWarnings(run), ...(elastic ? [elastic] : [])];
}

function taskWarnings({ task, data, valid, model, firstSave, resume }: RunConfig): string[] {
  if (task === 'lm') {
    return [];
  }
  const isNew = model.kind === 'preset' && firstSave === undefined && resume === undefined;
  return [
    ...skippedNotes('--data', data),
    ...skippedNotes('--valid', valid),
    ...(isNew
      ? [
          `--task ${task}: the preset ${model.name} begins with random weights and knows no words. A model that has read text needs far fewer examples: --model ${isPreference(task) ? 'HuggingFaceTB/SmolLM2-135M-Instruct' : 'sentence-transformers/all-MiniLM-L6-v2'}, for instance.`,
        ]
      : []),
  ];
}
