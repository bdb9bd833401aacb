// Makes the tokens of a run's data once: a later run of the same data with the same tokenizer finds
// them in the cache, and no rank makes them for itself.

import { createHash } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { UsageError } from '../errors.js';
import type { RunConfig, TokenFiles, TokenPart } from '../run-config.js';
import { promptsOf, type TrainedHead } from '../task/task-head.js';
import { dataParts } from './data-parts.js';
import { DataSource } from './data-source.js';
import { cacheLimit, isSameStamp, TokenCache } from './token-cache.js';
import { TOKEN_FORMAT } from './token-file.js';
import { NOVEL, type TokenJob, tokenize } from './tokenize.js';
import { tokenizeInThread } from './tokenize-thread.js';
import { tokenizerKey } from './tokenizer.js';
import { EXAMPLE_FORMAT, type ExampleReading } from './write-examples.js';
import type { OnTokenized } from './writing-tools.js';

/** What stands for tokens in a run whose module has rows of its own. */
const OWN_ROWS: readonly TokenPart[] = [{ directory: 'own-rows', name: undefined, share: 1 }];

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
  const reading = readingOf(config.head);
  const prepared = async (flag: TokenJob['flag'], given: string | undefined) => {
    const parts = dataParts(given, flag);
    if (reading !== undefined && parts.length > 1) {
      throw new UsageError(
        `${flag}: a mixture by weights is for --task lm, got --task ${reading.task}. Leave the weights out: the examples of all files are learnt.`,
      );
    }
    const made: TokenPart[] = [];
    for (const data of parts) {
      const directory = await prepare({ ...config, flag, data, reading }, options, cache);
      made.push({ directory, name: data.name, share: data.share });
    }
    return made;
  };
  return {
    train: await prepared('--data', data),
    valid: valid === undefined ? undefined : await prepared('--valid', valid),
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
  config: Pick<RunConfig, 'tokenizer' | 'model'> & Pick<TokenJob, 'flag' | 'data' | 'reading'>,
  { entry, onTokenized, signal }: PrepareOptions,
  cache: TokenCache,
): Promise<string> {
  const { flag, data, tokenizer, model, reading } = config;
  const tokenizerDirectory = model.kind === 'directory' ? model.path : undefined;
  const source = await DataSource.open(data, flag, { isOfExamples: reading !== undefined });
  const formats = source.formats.join();
  const key = await tokenizerKey(tokenizer, tokenizerDirectory);
  const read = reading === undefined ? [] : [reading, EXAMPLE_FORMAT];
  const how = [TOKEN_FORMAT, formats, key, ...read];
  const keyOf = (sha256: string) =>
    createHash('sha256')
      .update(JSON.stringify([...how, sha256]))
      .digest('hex')
      .slice(0, 32);
  const known = await knownHash(source, cache, signal);
  const found = known && (await cache.use(keyOf(known)));
  if (found) {
    return found;
  }
  const part = cache.newPart();
  const job: TokenJob = { flag, data, tokenizer, tokenizerDirectory, reading, part };
  const tell: OnTokenized = (done, total) => onTokenized?.(data.name ?? NOVEL, done, total);
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
  source: DataSource,
  cache: TokenCache,
  signal: AbortSignal | undefined,
): Promise<string | undefined> {
  const stamp = source.stampBefore;
  const known = stamp && (await cache.hashOf(stamp));
  if (known !== undefined || !(await cache.hasSize(source.total))) {
    return known;
  }
  const startMs = Date.now();
  for await (const { data } of source.opened()) {
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
