// The files of what a run has trained, in the form that other programs read: the model with its
// tokenizer, or the adapters alone.

import { type ModelFileOptions, modelFiles, peftLayers } from '@shardweave/nn';
import {
  encoderFiles,
  sentenceTransformersFiles,
  sequenceClassifierFiles,
} from '@shardweave/nn/embedding';
import { tokenizerFiles } from '../data/hub-tokenizer.js';
import type { FilePieces } from '../files/write-file.js';
import { hubNameOf } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import type { RunConfig } from '../run-config.js';
import { adapterFiles } from './adapter-directory.js';
import type { ModelState } from './model-directory.js';
import type { EmbedHead } from './task-head.js';
import { isEncoder, languageConfig, widthOf } from './text-config.js';

/** What has been trained, or at least its names, dtypes and shapes. */
export interface TrainedModel {
  readonly config: Pick<RunConfig, 'model' | 'modelConfig' | 'head' | 'lora'>;
  readonly state: ModelState;
}

/** The files of a directory in the Hub's layout or in PEFT's. */
export async function trainedFiles(
  { config, state }: TrainedModel,
  options: ModelFileOptions = {},
): Promise<readonly FilePieces[]> {
  const { model, modelConfig, head, lora } = config;
  if (lora !== undefined) {
    const path = model.kind === 'directory' ? model.path : model.name;
    // Programs that read PEFT's layout want a repository there, and not one of its files.
    const { repo: base = path, revision } = parseModelName(hubNameOf(path) ?? '') ?? {};
    return adapterFiles(state, {
      config: { ...lora, layers: peftLayers(state), ...trainedHead(state) },
      ...{ base, revision },
      fanInFanOut: modelConfig.model_type === 'gpt2',
    });
  }
  const tokenizer = model.kind === 'directory' ? await tokenizerFiles(model.path) : [];
  switch (head.kind) {
    case 'lm':
      return [...tokenizer, ...modelFiles(languageConfig(modelConfig), state, options)];
    case 'embed': {
      const sentence = sentenceTransformersFiles({
        ...sentenceOf(head),
        width: widthOf(modelConfig),
      });
      const files = isEncoder(modelConfig)
        ? encoderFiles(modelConfig, state, options)
        : modelFiles(modelConfig, state, options);
      return [...tokenizer, ...files, ...sentence.map(({ path, text }) => textFile(path, text))];
    }
    default: {
      const { labels, problemType } = head;
      const described = { base: modelConfig, labels, problemType };
      return [...tokenizer, ...sequenceClassifierFiles(described, state, options)];
    }
  }
}

/** What stands beside adapters as a whole: a classifier's head. */
function trainedHead(state: ModelState): { readonly modulesToSave?: readonly string[] } {
  const names = [...state.keys()].map((name) => /^(classifier|score)\.weight$/.exec(name)?.[1]);
  const found = names.filter((name) => name !== undefined);
  return found.length === 0 ? {} : { modulesToSave: found };
}

function sentenceOf({ kind: _, ...config }: EmbedHead): Omit<EmbedHead, 'kind'> {
  return config;
}

function textFile(name: string, text: string): FilePieces {
  const bytes = new TextEncoder().encode(text);
  return { name, byteLength: bytes.byteLength, pieces: () => [bytes] };
}
