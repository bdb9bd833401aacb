// A model on disk, as it is read: in the Hugging Face layout, or in GGUF files. write-trained.ts
// has what is written.

import { existsSync, readdirSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { INDEX_FILE as SAVE_INDEX } from '@shardweave/checkpoint';
import {
  type HostTensor,
  type LazyTensor,
  type ModelConfig,
  openModelState,
  parseModelConfig,
} from '@shardweave/nn';
import { UsageError } from '../errors.js';
import { explainFiles, withModelFiles } from '../files/file-source.js';
import { GGUF_END, ggufConfig, isGgufFile, withGgufModel } from '../files/gguf-model.js';
import { RUN_FILES } from '../files/run-files.js';
import { hasSaves, savesOf } from '../files/save-directory.js';
import { isLeftOut } from '../hub/hub-cache.js';
import { meantPath } from '../nearest.js';
import { ADAPTER_FILES, findAdapter } from './adapter-directory.js';

export const CONFIG_FILE = 'config.json';
const WEIGHTS_FILE = 'model.safetensors';
/** The file that names the shards of a model in several files. */
const INDEX_FILE = 'model.safetensors.index.json';
/** Weights in other formats, and shards without their index. */
const OTHER_WEIGHTS = /\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|onnx|gguf)$|\.index\.json$/;

/** The model_type of what a run of a module that people have written leaves. */
export const MODULE_TYPE = 'module';

/** Weights by name; those of large models are read when they are asked for. */
export type ModelState = ReadonlyMap<string, HostTensor | LazyTensor>;

/** The place of a model, and whether it has weights: there, or on the Hub that it is of. */
export interface ModelDirectory {
  /** A directory, or the first GGUF file. */
  readonly path: string;
  readonly hasWeights: boolean;
}

/**
 * The model that --model `path` means: that directory or GGUF file or, where it is the --out of a
 * run, the model that the run left in it. Undefined where `path` is neither.
 * @throws {UsageError} where there are weights, but in no file that is read, and where there are
 * only adapters
 */
export function findModelDirectory(path: string): ModelDirectory | undefined {
  if (isGgufFile(path)) {
    return { path, hasWeights: true };
  }
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) {
    return undefined;
  }
  const inRun = join(path, RUN_FILES.model);
  const isRun = !existsSync(join(path, CONFIG_FILE)) && existsSync(join(inRun, CONFIG_FILE));
  const directory = isRun ? inRun : path;
  const hasWeights = [WEIGHTS_FILE, INDEX_FILE].some((name) => existsSync(join(directory, name)));
  const adapter = findAdapter(path);
  if (!hasWeights && existsSync(join(adapter, ADAPTER_FILES.config))) {
    throw new UsageError(
      `--model: ${path} holds adapters, and not the model that they were trained beside. Give that one, and --adapter ${adapter}.`,
    );
  }
  const save = isRun || hasWeights ? undefined : saveIn(path);
  if (save !== undefined) {
    throw new UsageError(
      `--model: ${path} holds ${save} of a run, and no model. Make one of it: shardweave convert --from ${path} --out DIR.`,
    );
  }
  const other = readdirSync(directory)
    .sort()
    .find((name) => OTHER_WEIGHTS.test(name));
  if (!hasWeights && other?.endsWith(GGUF_END) === true) {
    throw new UsageError(
      `--model: ${directory} has its weights in GGUF files. Name the file, or the first of several: --model ${join(directory, other)}.`,
    );
  }
  if (!hasWeights && other !== undefined) {
    throw new UsageError(
      `--model: ${directory} has weights in ${other}, but none in ${WEIGHTS_FILE} or the files that ${INDEX_FILE} names. Save them as one of these; without any weights a run starts from random ones.`,
    );
  }
  // What plan has asked the Hub for is a model with weights, which are not downloaded yet.
  const isLater = [WEIGHTS_FILE, INDEX_FILE].some((name) => isLeftOut(directory, name));
  return { path: directory, hasWeights: hasWeights || isLater };
}

/**
 * Names what `path` is where it is a save, or a run that stopped and has only saves; else
 * undefined.
 */
function saveIn(path: string): string | undefined {
  if (existsSync(join(path, SAVE_INDEX))) {
    return 'a save';
  }
  return hasSaves(savesOf(path)) ? 'saves' : undefined;
}

/**
 * The model that `directory`/config.json or the metadata of a GGUF file describes.
 * @throws {UsageError} where the file is missing, or is not the config of a model that can be
 * trained here
 */
export async function readModelConfig(directory: string): Promise<ModelConfig> {
  if (isGgufFile(directory)) {
    return await explainModel(directory, async () => parseModelConfig(await ggufConfig(directory)));
  }
  const path = join(directory, CONFIG_FILE);
  return await explainModel(path, async () => {
    const text = await readFile(path, 'utf8');
    refuseModule(directory, text);
    return parseModelConfig(text);
  });
}

/** @throws {UsageError} for the config.json of a module, which no command but `train` can make */
export function refuseModule(directory: string, config: string): void {
  const [, type] = /"model_type": *"([^"]*)"/.exec(config) ?? [];
  const [, name = 'a file'] = /"module": *"([^"]*)"/.exec(config) ?? [];
  if (type === MODULE_TYPE) {
    throw new UsageError(
      `--model: ${directory} holds the weights of a module that was trained by --model ${name}, which only train and plan can make. Load its model.safetensors into that module in a program of your own.`,
    );
  }
}

/**
 * The model with weights that a command is given.
 * @throws {UsageError} where there is none
 */
export async function findModel(
  given: string,
  flag = '--model',
): Promise<{ readonly path: string; readonly config: ModelConfig }> {
  const path = findWeights(given, flag);
  return { path, config: await readModelConfig(path) };
}

/**
 * The directory, or the GGUF file, of a model of any kind with weights.
 * @throws {UsageError} where there is none
 */
export function findWeights(given: string, flag = '--model'): string {
  const directory = findModelDirectory(resolve(given));
  if (directory?.hasWeights !== true) {
    const [is, meant] = existsSync(given) ? ['', ''] : [', which is not there', meantPath(given)];
    throw new UsageError(
      `${flag}: expected a directory with config.json and weights, or a GGUF file, got ${given}${is}.${meant} Train one first, or give that of a model.`,
    );
  }
  return directory.path;
}

/**
 * Hands the weights in `directory`, or in a GGUF file, to `use`. Each is read when `use` reads it,
 * so a model of any size takes one tensor of memory at a time; those in blocks are decoded to f32.
 * The headers of the files are checked before.
 * @throws {UsageError} where files can't be read, or do not fit the model that `use` loads
 */
export async function withModelState<T>(
  directory: string,
  config: ModelConfig,
  use: (state: ReadonlyMap<string, LazyTensor>) => Promise<T>,
): Promise<T> {
  if (isGgufFile(directory)) {
    return await explainModel(directory, () =>
      withGgufModel(directory, ({ tensors }) =>
        use(new Map([...tensors].map(([name, { values }]) => [name, values]))),
      ),
    );
  }
  return await explainModel(directory, () =>
    withModelFiles(directory, async (files) => use(await openModelState(files, config))),
  );
}

/** Turns what is wrong with a file into the user's mistake. */
export function explainModel<T>(path: string, read: () => Promise<T>): Promise<T> {
  const remedy =
    'Give a directory with a GPT-2, Llama, Qwen 2 or Qwen 3 in the Hugging Face layout, a GGUF file of one or, to embed and to classify, a BERT.';
  return explainFiles({ what: `--model: ${path}`, remedy }, read);
}
