// Makes the tokens of a run's data once: a later run of the same data with the same tokenizer finds
// them in the cache, and no rank makes them for itself.

import { createHash } from 'node:crypto';
import { rm } from 'node:fs/promises';
import type { RunConfig, TokenFiles } from '../run-config.js';
import { promptsOf, type TrainedHead } from '../task/task-head.js';
import { fileFormat } from './data-file.js';
import { DataSource, filesOf } from './data-source.js';
import { cacheLimit, isSameStamp, TokenCache } from './token-cache.js';
import { TOKEN_FORMAT } from './token-file.js';
import { NOVEL, type TokenJob, tokenize } from './tokenize.js';
import { tokenizeInThread } from './tokenize-thread.js';
import { tokenizerKey } from './tokenizer.js';
import type { ExampleReading } from './write-examples.js';
import type { OnTokenized } from './writing-tools.js';

/** What stands for tokens in a run whose module has rows of its own. */
const OWN_ROWS = 'own-rows';

export interface PrepareOptions {
  /** The script that a thread runs; empty where there is none, and this thread does the work. */
  readonly entry: string;
  /**
   * The cache of the run, which keeps what is found as long as it is open. Default: one that is
   * closed in the end.
   */
  readonly cache?: TokenCache | undefined;
  /** Called with the progress of the work; not called for tokens that are found. */
  readonly onTokenized?: ((name: string, done: number, total: number) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Finds or makes the tokens of all data of a run. Other processes may do the same at the same time.
 * @throws {UsageError} where the data or the cache can't be used
 */
export async function prepareTokens(
  config: Pick<RunConfig, 'data' | 'valid' | 'tokenizer' | 'model' | 'cache' | 'head'> &
    Partial<Pick<RunConfig, 'modelConfig'>>,
  options: PrepareOptions,
): Promise<TokenFiles> {
  const { data, valid, modelConfig } = config;
  if (modelConfig?.model_type === 'module' && modelConfig.rows !== undefined) {
    // Its rows are told by its text, which a save names by itself.
    return { train: OWN_ROWS, valid: modelConfig.rows.valid === undefined ? undefined : OWN_ROWS };
  }
  await using own = options.cache ? undefined : await TokenCache.open(config.cache);
  const cache = options.cache ?? own!;
  const prepared = (data: Pick<TokenJob, 'flag' | 'file'>) =>
    prepare({ ...config, ...data, reading: readingOf(config.head) }, options, cache);
  return {
    train: await prepared({ flag: '--data', file: data }),
    valid: valid && (await prepared({ flag: '--valid', file: valid })),
  };
}

/** How lines are read: as examples of the task, or as documents. */
function readingOf(head: TrainedHead): ExampleReading | undefined {
  if (head.kind === 'lm' || head.kind === 'module') {
    return undefined;
  }
  return { task: head.kind, prompts: head.kind === 'embed' ? promptsOf(head) : {} };
}

async function prepare(
  config: Pick<RunConfig, 'tokenizer' | 'model'> & Pick<TokenJob, 'flag' | 'file' | 'reading'>,
  { entry, onTokenized, signal }: PrepareOptions,
  cache: TokenCache,
): Promise<string> {
  const { flag, file, tokenizer, model, reading } = config;
  const tokenizerDirectory = model.kind === 'directory' ? model.path : undefined;
  const formats = filesOf(file).map(fileFormat).join();
  const key = await tokenizerKey(tokenizer, tokenizerDirectory);
  const how = [TOKEN_FORMAT, formats, key, ...(reading === undefined ? [] : [reading])];
  const keyOf = (sha256: string) =>
    createHash('sha256')
      .update(JSON.stringify([...how, sha256]))
      .digest('hex')
      .slice(0, 32);
  const known = await knownHash({ flag, file }, cache, signal);
  const found = known && (await cache.use(keyOf(known)));
  if (found) {
    return found;
  }
  const part = cache.newPart();
  const job: TokenJob = { flag, file, tokenizer, tokenizerDirectory, reading, part };
  const tell: OnTokenized = (done, total) => onTokenized?.(file ?? NOVEL, done, total);
  const startMs = Date.now();
  try {
    const { sha256, stamp } =
      entry === ''
        ? await tokenize(job, tell)
        : await tokenizeInThread(job, { entry, onTokenized: tell, signal });
    const path = await cache.keep(part, keyOf(sha256));
    await (stamp && cache.note(stamp, sha256, startMs));
    await cache.trim(cacheLimit(process.env));
    return path;
  } finally {
    // A thread that was ended leaves the unfinished directory behind; otherwise there is none.
    await rm(part, { recursive: true, force: true }).catch(() => undefined);
  }
}

/**
 * The hash of data that may have tokens already. It is known by its files' stamps, or else computed
 * where there are tokens of as many bytes: that takes a second a gigabyte, and making tokens anew
 * minutes. Undefined where that would only be another reading.
 */
async function knownHash(
  { flag, file }: Pick<TokenJob, 'flag' | 'file'>,
  cache: TokenCache,
  signal: AbortSignal | undefined,
): Promise<string | undefined> {
  const source = await DataSource.open(file, flag);
  const stamp = source.stampBefore;
  const known = stamp && (await cache.hashOf(stamp));
  if (known !== undefined || !(await cache.hasSize(source.total))) {
    return known;
  }
  const startMs = Date.now();
  for await (const data of source.opened()) {
    for await (const _ of data.chunks()) {
      signal?.throwIfAborted();
    }
  }
  const sha256 = source.digest();
  const after = source.stampAfter;
  if (after !== undefined && isSameStamp(after, stamp)) {
    await cache.note(after, sha256, startMs);
  }
  return sha256;
}
