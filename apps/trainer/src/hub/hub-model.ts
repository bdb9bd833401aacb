// A model of the Hub as a directory on this machine. The revision becomes a commit first, and all
// files are of that one; those that are in the cache are not asked for again.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { MODEL_TEXTS } from '@shardweave/gguf';
import type { ModelFiles } from '@shardweave/nn';
import { StoreLockedError } from '@shardweave/shard-store';
import { lockDirectory, nodeFiles, type OwnerLock } from '@shardweave/shard-store/node';
import { DiskFullError, UsageError } from '../errors.js';
import { freeBytes } from '../files/disk-room.js';
import { makeDirectory } from '../files/make-directory.js';
import { describeSystemError } from '../system-error.js';
import { bytesThere, downloadBlob } from './download-blob.js';
import { CachedRepo, isLacking } from './hub-cache.js';
import { HubClient, type HubFile } from './hub-client.js';
import { HubContentError, HubUnreachableError } from './hub-errors.js';
import { type HubName, hubNameOf, isCommit } from './hub-name.js';
import { type HubSettings, hubSettings } from './hub-settings.js';
import { HubSource } from './hub-source.js';

export interface HubOptions {
  readonly env?: NodeJS.ProcessEnv;
  /** Whether the weights are needed, or the configuration and the tokenizer alone. Default true. */
  readonly needsWeights?: boolean;
  readonly signal?: AbortSignal | undefined;
  /** Called with the bytes that are there, of all that the command needs. */
  readonly onBytes?: ((name: string, done: number, total: number) => void) | undefined;
  /** Called with sentences for people. */
  readonly onNote?: ((text: string) => void) | undefined;
  /** Called with the weights on the Hub where they are not needed, so that they can be checked. */
  readonly checkHeaders?: ((directory: string, files: ModelFiles) => Promise<void>) | undefined;
  /** The time before something is tried again. Default 1 s. */
  readonly pauseMs?: number;
}

const CONFIG = 'config.json';
const WEIGHTS = 'model.safetensors';
const INDEX = 'model.safetensors.index.json';
const PAUSE_MS = 1000;

/**
 * Finds a model, and downloads what the command needs of it; resolves to the directory of its
 * files.
 * @throws {UsageError} where there is no such model, it may not be read, or can't be used
 * @throws {HubUnreachableError} where the Hub can't be asked and the cache has not all of it
 * @throws {HubContentError} for bytes that are not the Hub's
 * @throws {DiskFullError} where the cache has no room
 */
export async function hubModel(name: HubName, options: HubOptions = {}): Promise<string> {
  const settings = hubSettings(options.env ?? process.env);
  const cached = new CachedRepo(settings.cache, name.repo);
  const found = fromCache(name, cached, options);
  if (settings.isOffline || (found !== undefined && isCommit(name.revision))) {
    return found ?? refuseOffline(name, settings);
  }
  const client = new HubClient(settings, options);
  let commit: string;
  try {
    commit = await client.commitOf(name.repo, name.revision);
  } catch (error) {
    if (!(error instanceof HubUnreachableError) || found === undefined) {
      throw error;
    }
    options.onNote?.(`${error.message} The model in the cache is used: ${hubNameOf(found)}.`);
    return found;
  }
  const path = cached.snapshot(commit);
  if (isWhole(path, options)) {
    cached.noteCommit(name.revision, commit);
    return path;
  }
  try {
    await using _lock = await lockRepo(cached, { name, ...options });
    await download({ repo: name.repo, revision: commit }, { client, cached, ...options });
    cached.setCommit(name.revision, commit);
  } catch (error) {
    throw DENIED.has((error as NodeJS.ErrnoException).code) ? deniedError(error, settings) : error;
  }
  return path;
}

/** What the system says of the directory of another user, and of a disk that is only read. */
const DENIED: ReadonlySet<unknown> = new Set(['EACCES', 'EPERM', 'EROFS']);

function deniedError(cause: unknown, { cache }: HubSettings): UsageError {
  return new UsageError(
    `--model: the model is not whole in the cache ${cache}, which can't be written (${describeSystemError(cause)}). Set HF_HOME to a directory of yours, or name a model's directory.`,
    { cause },
  );
}

/** The model as the cache has it; undefined where something that the command needs is missing. */
function fromCache(
  { revision }: HubName,
  cached: CachedRepo,
  { needsWeights = true }: HubOptions,
): string | undefined {
  const commit = cached.commitOf(revision);
  const path = cached.snapshot(commit ?? '');
  // Other programs don't note which of the other texts a model is without.
  const isThere = existsSync(join(path, CONFIG)) && (!needsWeights || hasAllWeights(path));
  return commit !== undefined && isThere ? path : undefined;
}

/** Whether a snapshot has all files that the command needs and that its commit has. */
function isWhole(path: string, { needsWeights = true }: HubOptions): boolean {
  const isKnown = (name: string) => existsSync(join(path, name)) || isLacking(path, name);
  return MODEL_TEXTS.every(isKnown) && (!needsWeights || hasAllWeights(path));
}

/** Whether a snapshot has all files of the weights, or its commit has none. */
function hasAllWeights(path: string): boolean {
  return (
    existsSync(join(path, WEIGHTS)) ||
    shardsIn(path)?.every((name) => existsSync(join(path, name))) === true ||
    [WEIGHTS, INDEX].every((name) => isLacking(path, name))
  );
}

/**
 * The names of the files that the index of a directory lists; undefined where it has none.
 * @throws {HubContentError} where the index can't be read
 */
function shardsIn(path: string): readonly string[] | undefined {
  const index = join(path, INDEX);
  if (!existsSync(index)) {
    return undefined;
  }
  try {
    const { weight_map: map = {} } = JSON.parse(readFileSync(index, 'utf8')) as {
      readonly weight_map?: Readonly<Record<string, string>>;
    };
    return [...new Set(Object.values(map))];
  } catch (cause) {
    throw new HubContentError(
      `${index}: expected JSON with the files of a model's weights (${(cause as Error).message}). Remove that file, and what it links to, and run the command again.`,
      { cause },
    );
  }
}

function refuseOffline({ repo, revision = 'main' }: HubName, { cache }: HubSettings): never {
  throw new UsageError(
    `--model: there is no directory ${repo} here, and ${repo}@${revision} is not whole in the cache ${cache}, while HF_HUB_OFFLINE forbids to ask the Hub. Leave that out once, or name a directory.`,
  );
}

/** Downloads what is missing of a commit. Two commands don't do that at once. */
async function download(
  { repo, revision: commit = '' }: HubName,
  tools: HubOptions & { readonly client: HubClient; readonly cached: CachedRepo },
): Promise<void> {
  const { client, cached, needsWeights = true, checkHeaders } = tools;
  const files = new Map((await client.filesOf(repo, commit)).map((file) => [file.path, file]));
  refuseOthers(repo, files);
  const take = async (names: readonly string[]) => {
    const wanted = names.flatMap((name) => files.get(name) ?? []);
    await downloadAll(wanted, { ...tools, repo, commit });
  };
  const path = cached.snapshot(commit);
  await take(MODEL_TEXTS);
  cached.setLacking(
    commit,
    [...MODEL_TEXTS, WEIGHTS, INDEX].filter((name) => !files.has(name)),
  );
  if (needsWeights) {
    await take(files.has(WEIGHTS) ? [WEIGHTS] : [INDEX]);
    await take(files.has(WEIGHTS) ? [] : (shardsIn(path) ?? []));
  } else if (files.has(WEIGHTS) || files.has(INDEX)) {
    const open = async (name: string) => {
      const file = files.get(name);
      return file && new HubSource(client, { repo, commit, file });
    };
    await checkHeaders?.(path, { open });
  }
}

/** Refuses repositories that hold something else than a model that can be read here. */
function refuseOthers(repo: string, files: ReadonlyMap<string, HubFile>): void {
  const names = [...files.keys()];
  const other = (end: string) => names.find((name) => name.endsWith(end));
  const refuse = (holds: string, remedy: string) => {
    throw new UsageError(`--model: ${repo} holds ${holds}. ${remedy}`);
  };
  if (files.has('adapter_config.json') && !files.has(CONFIG)) {
    refuse('adapters, and not the model that they were trained beside', 'Name that one.');
  }
  if (!files.has(CONFIG)) {
    const gguf = other('.gguf');
    refuse(
      gguf === undefined ? 'no config.json' : `${gguf} and other files of llama.cpp alone`,
      'Name the model in the Hugging Face layout, whose weights are safetensors.',
    );
  }
  const old = other('.bin') ?? other('.pt') ?? other('.h5') ?? other('.msgpack');
  if (!files.has(WEIGHTS) && !files.has(INDEX) && old !== undefined) {
    refuse(
      `weights in ${old}, and none as safetensors`,
      'Its page may have a pull request with them: name it as org/name@refs/pr/N.',
    );
  }
}

async function downloadAll(
  files: readonly HubFile[],
  tools: HubOptions & {
    readonly client: HubClient;
    readonly cached: CachedRepo;
    readonly repo: string;
    readonly commit: string;
  },
): Promise<void> {
  const { client, cached, repo, commit, signal, onBytes, pauseMs = PAUSE_MS } = tools;
  const sizes = await Promise.all(files.map(({ etag }) => bytesThere(cached.blob(etag))));
  const total = files.reduce((sum, { byteLength }) => sum + byteLength, 0);
  const missing = total - sizes.reduce((sum, size) => sum + size, 0);
  const free = freeBytes(cached.path);
  if (missing > free) {
    throw new DiskFullError({ path: cached.path, neededBytes: missing, freeBytes: free });
  }
  let before = 0;
  for (const file of files) {
    const blob = cached.blob(file.etag);
    const base = before;
    if (!existsSync(blob)) {
      await downloadBlob(file, blob, {
        open: (from) => client.open({ repo, commit, path: file.path }, { from }),
        onBytes: (done) => onBytes?.(repo, base + done, total),
        pauseMs,
        signal,
      });
    }
    await cached.link(file.etag, { commit, path: file.path });
    before += file.byteLength;
  }
}

/** Waits until no other command downloads the same model. */
async function lockRepo(
  { locks }: CachedRepo,
  { name, signal, onNote, pauseMs = PAUSE_MS }: HubOptions & { readonly name: HubName },
): Promise<AsyncDisposable> {
  makeDirectory(locks);
  for (let isFirst = true; ; isFirst = false) {
    let lock: OwnerLock;
    try {
      lock = await lockDirectory(nodeFiles, locks);
    } catch (error) {
      if (!(error instanceof StoreLockedError)) {
        throw error;
      }
      if (isFirst) {
        onNote?.(`Another command downloads ${name.repo}; this one waits for it.`);
      }
      await wait(pauseMs, undefined, { signal });
      continue;
    }
    return { [Symbol.asyncDispose]: () => lock.release() };
  }
}
