// A model on disk in the Hugging Face layout: read before a run, written after it.

import { existsSync, readdirSync, statSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  type Gpt2Config,
  gpt2ConfigText,
  gpt2File,
  gpt2State,
  type HostTensor,
  NnError,
  parseGpt2Config,
} from '@shardweave/nn';
import { UsageError } from '../errors.js';
import { RUN_FILES } from '../output/run-directory.js';
import { describeSystemError } from '../system-error.js';

const CONFIG_FILE = 'config.json';
const WEIGHTS_FILE = 'model.safetensors';
/** Of other formats, or split. */
const OTHER_WEIGHTS = /\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|onnx|gguf)$|\.index\.json$/;

export type ModelState = ReadonlyMap<string, HostTensor>;

/** Where a model lies, and whether its weights do, too. */
export interface ModelDirectory {
  readonly path: string;
  readonly hasWeights: boolean;
}

/**
 * The model that --model `path` means: that directory or, where it is the --out of a run, the one that
 * the run left in it. Undefined where `path` is no directory.
 *
 * @throws UsageError where there are weights, but not in the one file that is read.
 */
export function findModelDirectory(path: string): ModelDirectory | undefined {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) return undefined;
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
 * @throws UsageError where the file is missing, or no config of a GPT-2 that can be trained here.
 */
export async function readModelConfig(directory: string): Promise<Gpt2Config> {
  const path = join(directory, CONFIG_FILE);
  return await explain(path, async () => parseGpt2Config(await readFile(path, 'utf8')));
}

/**
 * The weights in `directory`.
 *
 * @throws UsageError where the file can't be read.
 */
export async function readModelState(directory: string): Promise<ModelState> {
  const path = join(directory, WEIGHTS_FILE);
  return await explain(path, async () => gpt2State(await readFile(path)));
}

/** Writes config.json and model.safetensors, f32. */
export async function writeModel(
  directory: string,
  config: Gpt2Config,
  state: ModelState,
): Promise<void> {
  await mkdir(directory, { recursive: true });
  await writeFile(join(directory, CONFIG_FILE), gpt2ConfigText(config));
  await writeFile(join(directory, WEIGHTS_FILE), gpt2File(state));
}

/** Turns what is wrong with a file into the user's mistake. */
async function explain<T>(path: string, read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (cause) {
    const isSystem = (cause as NodeJS.ErrnoException).syscall !== undefined;
    if (!(cause instanceof NnError) && !isSystem) throw cause;
    const text = isSystem ? ` (${describeSystemError(cause)}).` : `. ${(cause as Error).message}`;
    throw new UsageError(
      `--model: ${path} can't be used${text} Give a directory with a GPT-2 in the Hugging Face layout.`,
      { cause },
    );
  }
}
