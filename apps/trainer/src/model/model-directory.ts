// A model on disk in the Hugging Face layout: read before a run, written after it.

import { existsSync, readdirSync, statSync } from 'node:fs';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { FsdpStateDictError } from '@shardweave/fsdp';
import {
  type Gpt2Config,
  gpt2Pieces,
  type HostTensor,
  type LazyTensor,
  modelConfigText,
  NnError,
  openGpt2,
  parseModelConfig,
} from '@shardweave/nn';
import { OffloadStateDictError } from '@shardweave/offload';
import { UsageError } from '../errors.js';
import { RUN_FILES } from '../output/run-directory.js';
import { writePieces } from '../output/write-file.js';
import { describeSystemError } from '../system-error.js';
import { FileSource } from './file-source.js';

const CONFIG_FILE = 'config.json';
const WEIGHTS_FILE = 'model.safetensors';
/** Of other formats, or split. */
const OTHER_WEIGHTS = /\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|onnx|gguf)$|\.index\.json$/;

/** Weights by name, those of large models read when they are asked for. */
export type ModelState = ReadonlyMap<string, HostTensor | LazyTensor>;

/** Where a model lies, and whether its weights do, too. */
export interface ModelDirectory {
  readonly path: string;
  readonly hasWeights: boolean;
}

/**
 * The model that --model `path` means: that directory or, where it is the --out of a run, the one that
 * the run left in it. Undefined where `path` is no directory.
 *
 * @throws {UsageError} where there are weights, but not in the one file that is read.
 */
export function findModelDirectory(path: string): ModelDirectory | undefined {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) {
    return undefined;
  }
  const inRun = join(path, RUN_FILES.model);
  const isRun = !existsSync(join(path, CONFIG_FILE)) && existsSync(join(inRun, CONFIG_FILE));
  const directory = isRun ? inRun : path;
  const hasWeights = existsSync(join(directory, WEIGHTS_FILE));
  const other = readdirSync(directory).find((name) => OTHER_WEIGHTS.test(name));
  if (!hasWeights && other !== undefined) {
    throw new UsageError(
      `--model: ${directory} has weights in ${other}, but none in ${WEIGHTS_FILE}. Save them as that one file; without any weights a run starts from random ones.`,
    );
  }
  return { path: directory, hasWeights };
}

/**
 * What `directory`/config.json describes.
 *
 * @throws {UsageError} where the file is missing, or no config of a GPT-2 that can be trained here.
 */
export async function readModelConfig(directory: string): Promise<Gpt2Config> {
  const path = join(directory, CONFIG_FILE);
  const config = await explain(path, async () => parseModelConfig(await readFile(path, 'utf8')));
  if (config.model_type !== 'gpt2') {
    throw new UsageError(`--model: ${path} is of a ${config.model_type}. Give a GPT-2's.`);
  }
  return config;
}

/**
 * Hands the weights in `directory` to `use`, which reads each while it runs: of any size, one tensor
 * in memory at a time. The file's header is checked before.
 *
 * @throws {UsageError} where the file can't be read, or does not fit the model that `use` loads.
 */
export async function withModelState<T>(
  directory: string,
  use: (state: ReadonlyMap<string, LazyTensor>) => Promise<T>,
): Promise<T> {
  const path = join(directory, WEIGHTS_FILE);
  return await explain(path, () =>
    FileSource.use(path, async (source) => use(await openGpt2(source))),
  );
}

/**
 * Writes model.safetensors, f32, and config.json, each whole or not at all and the weights first: a
 * directory with a config alone would stand for random ones.
 */
export async function writeModel(
  directory: string,
  config: Gpt2Config,
  state: ModelState,
): Promise<void> {
  await mkdir(directory, { recursive: true });
  await writePieces(join(directory, WEIGHTS_FILE), gpt2Pieces(state));
  const text = new TextEncoder().encode(modelConfigText(config));
  await writePieces(join(directory, CONFIG_FILE), [text]);
}

/** Turns what is wrong with a file into the user's mistake. */
async function explain<T>(path: string, read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (cause) {
    const isSystem = (cause as NodeJS.ErrnoException).syscall !== undefined;
    const isUnfit = [NnError, FsdpStateDictError, OffloadStateDictError].some(
      (unfit) => cause instanceof unfit,
    );
    if (!isUnfit && !isSystem) {
      throw cause;
    }
    const text = isSystem ? ` (${describeSystemError(cause)}).` : `. ${(cause as Error).message}`;
    throw new UsageError(
      `--model: ${path} can't be used${text} Give a directory with a GPT-2 in the Hugging Face layout.`,
      { cause },
    );
  }
}
