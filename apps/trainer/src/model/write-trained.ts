// Writes what a run has trained in the form that other programs read: the model with its tokenizer,
// or the adapters alone.

import { peftLayers } from '@shardweave/nn';
import { copyTokenizer } from '../data/hub-tokenizer.js';
import type { RunConfig } from '../run-config.js';
import { writeAdapter } from './adapter-directory.js';
import { type ModelState, type WriteModelOptions, writeModel } from './model-directory.js';

/** Writes the files of a model into `directory`, in the Hub's layout or in PEFT's. */
export async function writeTrained(
  directory: string,
  trained: {
    readonly config: Pick<RunConfig, 'model' | 'modelConfig' | 'lora'>;
    readonly state: ModelState;
  },
  options: WriteModelOptions = {},
): Promise<void> {
  const { state, config } = trained;
  const { model, modelConfig, lora } = config;
  if (lora !== undefined) {
    await writeAdapter(directory, state, {
      config: { ...lora, layers: peftLayers(state) },
      base: model.kind === 'directory' ? model.path : model.name,
      fanInFanOut: modelConfig.model_type === 'gpt2',
    });
    return;
  }
  await writeModel(directory, { config: modelConfig, state }, options);
  if (model.kind === 'directory') {
    await copyTokenizer(model.path, directory);
  }
}
