// A repository of the Hub on this machine. The revision becomes a commit first, and all files are
// of that one; those that are in the cache are not asked for again.

import { existsSync } from 'node:fs';
import { setTimeout as wait } from 'node:timers/promises';
import { StoreLockedError } from '@shardweave/shard-store';
import { lockDirectory, nodeFiles, type OwnerLock } from '@shardweave/shard-store/node';
import { DiskFullError, UsageError } from '../errors.js';
import { freeBytes } from '../files/disk-room.js';
import { makeDirectory } from '../files/make-directory.js';
import { describeSystemError, ownerHint } from '../system-error.js';
import { bytesThere, downloadBlob, sizeOf } from './download-blob.js';
import { CachedRepo } from './hub-cache.js';
import { HubClient, type HubFile } from './hub-client.js';
import { HubUnreachableError } from './hub-errors.js';
import { type HubName, isCommit, type RepoKind } from './hub-name.js';
import { hubSettings } from './hub-settings.js';

export interface RepoOptions {
  readonly env?: NodeJS.ProcessEnv | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called with the bytes that are there, of all that the command needs. */
  readonly onBytes?: ((name: string, done: number, total: number) => void) | undefined;
  /** Called with sentences for people. */
  readonly onNote?: ((text: string) => void) | undefined;
  /** The time before something is tried again. Default 1 s. */
  readonly pauseMs?: number | undefined;
}

/** One commit of a repository, and where it is kept. */
export interface RepoCommit {
  readonly repo: string;
  readonly commit: string;
  readonly cached: CachedRepo;
}

/** What a command wants of a repository. */
export interface RepoUse<T> {
  readonly kind: RepoKind;
  /** The flag that names it. */
  readonly flag: string;
  /**
   * What is there of a commit; undefined where something that the command needs is missing.
   * @param options.isAlone whether the Hub can't be asked what the commit has
   */
  readonly find: (at: RepoCommit, options: { readonly isAlone: boolean }) => T | undefined;
  /** Whether the Hub can't have more of what was found, whose files are known to be whole. */
  readonly isWhole: (at: RepoCommit) => boolean;
  /** Downloads what is missing; no other command does that at the same time. */
  readonly download: (at: RepoCommit, client: HubClient) => Promise<T>;
  /** What is said before "is not whole in the cache". */
  readonly lacks: string;
}

const PAUSE_MS = 1000;
/** What the system says of another user's directory, of a disk that is only read, of a file. */
const DENIED: ReadonlySet<unknown> = new Set(['EACCES', 'EPERM', 'EROFS', 'ENOTDIR']);

/**
 * Finds what a command wants of a repository, and downloads what is missing.
 * @throws {UsageError} where there is no such repository, it may not be read, or can't be used
 * @throws {HubUnreachableError} where the Hub can't be asked and the cache has not all of it
 * @throws {HubContentError} for bytes that are not the Hub's
 * @throws {DiskFullError} where the cache has no room
 */
export async function findRepo<T>(
  { repo, revision }: HubName,
  use: RepoUse<T>,
  options: RepoOptions,
): Promise<T> {
  const settings = hubSettings(options.env ?? process.env);
  const cached = new CachedRepo(settings.cache, repo, use.kind);
  const kept = cached.commitOf(revision);
  const keptAt = kept === undefined ? undefined : { repo, commit: kept, cached };
  const inCache = () => keptAt && use.find(keptAt, { isAlone: true });
  if (settings.isOffline || (isCommit(revision) && keptAt && use.isWhole(keptAt))) {
    const found = inCache();
    if (found !== undefined) {
      return found;
    }
  }
  if (settings.isOffline) {
    throw new UsageError(
      `${use.flag}: ${use.lacks} is not whole in the cache ${settings.cache}, while HF_HUB_OFFLINE forbids to ask the Hub. Leave that out once, or name a path.`,
    );
  }
  const { kind, flag } = use;
  const { signal, onNote, pauseMs } = options;
  const client = new HubClient(settings, { kind, flag, signal, onNote, pauseMs });
  let commit: string;
  try {
    commit = await client.commitOf(repo, revision);
  } catch (error) {
    const found = error instanceof HubUnreachableError ? inCache() : undefined;
    if (found === undefined) {
      throw error;
    }
    const { message } = error as HubUnreachableError;
    options.onNote?.(`${message} The ${use.kind} in the cache is used: ${repo}@${kept}.`);
    return found;
  }
  const at = { repo, commit, cached };
  const there = use.find(at, { isAlone: false });
  if (there !== undefined && use.isWhole(at)) {
    cached.noteCommit(revision, commit);
    return there;
  }
  try {
    await using _lock = await lockRepo(cached, { repo, ...options });
    const found = await use.download(at, client);
    cached.setCommit(revision, commit);
    return found;
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    const hasNoPlace = code === 'ENOENT' && !existsSync(settings.cache);
    if (!DENIED.has(code) && !hasNoPlace) {
      throw cause;
    }
    if (there !== undefined) {
      return there; // only what the Hub was asked for can't be noted
    }
    throw new UsageError(
      `${use.flag}: the ${use.kind} is not whole in the cache ${settings.cache}, which can't be written (${describeSystemError(cause)}). Set HF_HOME to a directory of yours, or name a path.`,
      { cause },
    );
  }
}

/** The files of a commit, of which the cache keeps names and sizes. */
export async function listRepo(
  { repo, commit, cached }: RepoCommit,
  client: HubClient,
): Promise<readonly HubFile[]> {
  const files = await client.filesOf(repo, commit);
  cached.setListing(commit, files);
  return files;
}

/** Downloads those files that the cache has not yet, and names them in the snapshot. */
export async function downloadAll(
  files: readonly HubFile[],
  { repo, commit, cached }: RepoCommit,
  tools: RepoOptions & { readonly client: HubClient },
): Promise<void> {
  const { client, signal, onBytes, onNote, pauseMs = PAUSE_MS } = tools;
  const missing = files.filter(({ path }) => !cached.has(commit, path));
  const free = freeBytes(cached.path);
  const leftOf = (file: HubFile) => file.byteLength - bytesThere(file, cached.blob(file.etag));
  const neededBytes = missing.reduce((sum, file) => sum + leftOf(file), 0);
  if (neededBytes > free) {
    throw new DiskFullError({ path: cached.path, neededBytes, freeBytes: free });
  }
  const total = files.reduce((sum, { byteLength }) => sum + byteLength, 0);
  let before = total - missing.reduce((sum, { byteLength }) => sum + byteLength, 0);
  for (const file of missing) {
    const blob = cached.blob(file.etag);
    const base = before;
    const size = sizeOf(blob);
    if (size !== file.byteLength) {
      if (size !== undefined) {
        onNote?.(
          `${repo}: expected ${file.byteLength} bytes of ${file.path} in the cache, got ${size}. They are downloaded again.`,
        );
      }
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

/** Waits until no other command downloads the same repository. */
async function lockRepo(
  { locks }: CachedRepo,
  { repo, signal, onNote, pauseMs = PAUSE_MS }: RepoOptions & { readonly repo: string },
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
        const { owner } = error;
        onNote?.(
          `Another command downloads ${repo}, ${owner}; this one waits for it.${ownerHint(error)}`,
        );
      }
      await wait(pauseMs, undefined, { signal });
      continue;
    }
    return { [Symbol.asyncDispose]: () => lock.release() };
  }
}
