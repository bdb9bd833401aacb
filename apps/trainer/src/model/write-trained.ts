// The files of what a run has trained, in the form that other programs read: the model with its
// tokenizer, or the adapters alone.

import { basename } from 'node:path';
import {
  type ModelFileOptions,
  modelFiles,
  peftLayers,
  safetensorsByteLength,
  safetensorsPieces,
} from '@shardweave/nn';
import {
  encoderFiles,
  sentenceTransformersFiles,
  sequenceClassifierConfigText,
  sequenceClassifierFiles,
} from '@shardweave/nn/embedding';
import { tokenizerFiles } from '../data/hub-tokenizer.js';
import { type FilePieces, textFile } from '../files/write-file.js';
import { hubNameOf } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import type { RunConfig } from '../run-config.js';
import type { EmbedHead, TaskHead } from '../task/task-head.js';
import {
  isEncoder,
  languageConfig,
  type ModuleConfig,
  type TextConfig,
  textConfig,
  widthOf,
} from '../task/text-config.js';
import { adapterFiles, CLASSES_FILE } from './adapter-directory.js';
import { CONFIG_FILE, MODULE_TYPE, type ModelState } from './model-directory.js';

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
  const { model, head, lora } = config;
  if (model.kind === 'module' || head.kind === 'module') {
    return moduleFiles({ config, state });
  }
  const modelConfig = textConfig(config.modelConfig);
  if (lora !== undefined) {
    const path = model.kind === 'directory' ? model.path : model.name;
    // Programs that read PEFT's layout want a repository there, and not one of its files.
    const { repo: base = path, revision } = parseModelName(hubNameOf(path) ?? '') ?? {};
    return adapterFiles(state, {
      config: { ...lora, layers: peftLayers(state) },
      ...typeOf(head, modelConfig),
      ...{ base, revision },
      fanInFanOut: modelConfig.model_type === 'gpt2',
    });
  }
  const tokenizer = model.kind === 'directory' ? await tokenizerFiles(model.path) : [];
  switch (head.kind) {
    case 'lm':
    case 'dpo':
    case 'orpo':
      return [...tokenizer, ...modelFiles(languageConfig(modelConfig), state, options)];
    case 'embed': {
      const files = isEncoder(modelConfig)
        ? encoderFiles(modelConfig, state, options)
        : modelFiles(modelConfig, state, options);
      return [...tokenizer, ...files, ...sentenceFiles(head, modelConfig)];
    }
    default: {
      const { labels, problemType } = head;
      const described = { base: modelConfig, labels, problemType };
      return [...tokenizer, ...sequenceClassifierFiles(described, state, options)];
    }
  }
}

/** The weights of a module that people have written, and a config.json that names it. */
function moduleFiles({ config, state }: TrainedModel): readonly FilePieces[] {
  const { model, modelConfig } = config;
  const named = model.kind === 'module' && { module: basename(model.path), sha256: model.sha256 };
  const { seq, vocab_size } = modelConfig as ModuleConfig;
  const text = JSON.stringify({ model_type: MODULE_TYPE, ...named, seq, vocab_size }, null, 2);
  const weights = {
    name: 'model.safetensors',
    byteLength: safetensorsByteLength(state),
    pieces: () => safetensorsPieces(state),
  };
  return [weights, textFile(CONFIG_FILE, `${text}\n`)];
}

/**
 * What PEFT calls the task of adapters, and the files that say what adapter_config.json has no
 * place for: the labels of a classifier, and how an embedder pools.
 */
function typeOf(head: TaskHead, modelConfig: TextConfig) {
  switch (head.kind) {
    case 'lm':
    case 'dpo':
    case 'orpo':
      return { taskType: 'CAUSAL_LM' } as const;
    case 'embed': {
      const beside = sentenceFiles(head, modelConfig);
      return { taskType: 'FEATURE_EXTRACTION', beside } as const;
    }
    default: {
      const { labels, problemType } = head;
      const text = sequenceClassifierConfigText({ base: modelConfig, labels, problemType });
      return { taskType: 'SEQ_CLS', beside: [textFile(CLASSES_FILE, text)] } as const;
    }
  }
}

function sentenceFiles({ kind: _, ...config }: EmbedHead, modelConfig: TextConfig): FilePieces[] {
  const files = sentenceTransformersFiles({ ...config, width: widthOf(modelConfig) });
  return files.map(({ path, text }) => textFile(path, text));
}
