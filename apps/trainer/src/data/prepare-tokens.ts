// Makes the tokens of a run's data once: a later run of the same file with the same tokenizer finds
// them in the cache, and no rank makes them for itself.

import { createHash, randomBytes } from 'node:crypto';
import { createReadStream, statSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { RunConfig, TokenFiles } from '../run-config.js';
import { formatOf } from './data-file.js';
import { explainUnreadable, readText } from './text.js';
import { hasTokenFile, TOKEN_FORMAT } from './token-file.js';
import { type OnTokenized, type TokenJob, tokenize } from './tokenize.js';
import { tokenizeInThread } from './tokenize-thread.js';
import { tokenizerKey } from './tokenizer.js';

export interface PrepareOptions {
  /** The script that a thread runs; empty where there is none, and this thread does the work. */
  readonly entry: string;
  /** Called with the progress of the work; not called for tokens that are found. */
  readonly onTokenized?: ((name: string, done: number, total: number) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Tokenizing this little takes less time than starting a thread, which is about 0.2 s on a laptop.
 */
const SMALL_BYTES = 2 ** 17;

/**
 * The directory where tokens are kept unless --cache sets it: SHARDWEAVE_CACHE, or else the
 * system's place for files that can be made again.
 */
export function defaultCacheDirectory(
  env: Readonly<Record<string, string | undefined>>,
  { platform = process.platform, home = homedir() } = {},
): string {
  if (env.SHARDWEAVE_CACHE) {
    return env.SHARDWEAVE_CACHE;
  }
  if (platform === 'darwin') {
    return join(home, 'Library/Caches/shardweave');
  }
  if (platform === 'win32') {
    return join(env.LOCALAPPDATA || join(home, 'AppData/Local'), 'shardweave/cache');
  }
  return join(env.XDG_CACHE_HOME || join(home, '.cache'), 'shardweave');
}

/**
 * Finds or makes the tokens of all data of a run. Other processes may do the same at the same time.
 * @throws {UsageError} where the data or the cache can't be used
 */
export async function prepareTokens(
  config: Pick<RunConfig, 'dataFile' | 'validFile' | 'tokenizer' | 'model' | 'cacheDir'>,
  options: PrepareOptions,
): Promise<TokenFiles> {
  const { dataFile, validFile } = config;
  return {
    train: await prepare(config, { flag: '--data', file: dataFile }, options),
    valid: validFile && (await prepare(config, { flag: '--valid', file: validFile }, options)),
  };
}

async function prepare(
  config: Pick<RunConfig, 'tokenizer' | 'model' | 'cacheDir'>,
  { flag, file }: Pick<TokenJob, 'flag' | 'file'>,
  { entry, onTokenized, signal }: PrepareOptions,
): Promise<string> {
  const { tokenizer, model, cacheDir } = config;
  const tokenizerDirectory = model.kind === 'directory' ? model.path : undefined;
  const what = [
    TOKEN_FORMAT,
    formatOf(file),
    await tokenizerKey(tokenizer, tokenizerDirectory),
    await hashOf(file, flag),
  ];
  const key = createHash('sha256').update(JSON.stringify(what)).digest('hex').slice(0, 32);
  const into = join(cacheDir, 'tokens', key);
  if (hasTokenFile(into)) {
    return into;
  }
  const part = `${into}.${randomBytes(6).toString('hex')}.part`;
  const job: TokenJob = { flag, file, tokenizer, tokenizerDirectory, part, into };
  const tell: OnTokenized = (done, total) => onTokenized?.(file ?? 'Moby Dick', done, total);
  const isSmall = tokenizer === 'byte' || (file && statSync(file).size < SMALL_BYTES);
  try {
    if (entry === '' || isSmall) {
      await tokenize(job, tell);
    } else {
      await tokenizeInThread(job, { entry, onTokenized: tell, signal });
    }
  } finally {
    // A thread that was ended leaves the unfinished directory behind; otherwise there is none.
    await rm(part, { recursive: true, force: true }).catch(() => undefined);
  }
  return into;
}

async function hashOf(file: string | undefined, flag: string): Promise<string> {
  const hash = createHash('sha256');
  if (file === undefined) {
    return hash.update(await readText(undefined)).digest('hex');
  }
  try {
    for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
      hash.update(chunk);
    }
  } catch (error) {
    throw explainUnreadable(error, file, flag);
  }
  return hash.digest('hex');
}
