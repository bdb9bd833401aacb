// A model on disk in the Hugging Face layout: read before a run, written after it.

import { existsSync } from 'node:fs';
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

const CONFIG_FILE = 'config.json';
const WEIGHTS_FILE = 'model.safetensors';

export type ModelState = ReadonlyMap<string, HostTensor>;

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
 * The weights in `directory`, or undefined where there are none: a run then starts from random ones.
 *
 * @throws UsageError where the file can't be read.
 */
export async function readModelState(directory: string): Promise<ModelState | undefined> {
  const path = join(directory, WEIGHTS_FILE);
  if (!existsSync(path)) return undefined;
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
    const text = (cause as Error).message;
    throw new UsageError(
      `--model: ${path} can't be used. ${text} Give a directory with a GPT-2 in the Hugging Face layout.`,
      { cause },
    );
  }
}
