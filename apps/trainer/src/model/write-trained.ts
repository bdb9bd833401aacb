// The files of what a run has trained, in the form that other programs read: the model with its
// tokenizer, or the adapters alone.

import { type ModelFileOptions, modelFiles, peftLayers } from '@shardweave/nn';
import { tokenizerFiles } from '../data/hub-tokenizer.js';
import type { FilePieces } from '../files/write-file.js';
import { hubNameOf } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import type { RunConfig } from '../run-config.js';
import { adapterFiles } from './adapter-directory.js';
import type { ModelState } from './model-directory.js';

/** What has been trained, or at least its names, dtypes and shapes. */
export interface TrainedModel {
  readonly config: Pick<RunConfig, 'model' | 'modelConfig' | 'lora'>;
  readonly state: ModelState;
}

/** The files of a directory in the Hub's layout or in PEFT's. */
export async function trainedFiles(
  { config, state }: TrainedModel,
  options: ModelFileOptions = {},
): Promise<readonly FilePieces[]> {
  const { model, modelConfig, lora } = config;
  if (lora !== undefined) {
    const path = model.kind === 'directory' ? model.path : model.name;
    // Programs that read PEFT's layout want a repository there, and not one of its files.
    const { repo: base = path, revision } = parseModelName(hubNameOf(path) ?? '') ?? {};
    return adapterFiles(state, {
      config: { ...lora, layers: peftLayers(state) },
      ...{ base, revision },
      fanInFanOut: modelConfig.model_type === 'gpt2',
    });
  }
  const tokenizer = model.kind === 'directory' ? await tokenizerFiles(model.path) : [];
  return [...tokenizer, ...modelFiles(modelConfig, state, options)];
}
