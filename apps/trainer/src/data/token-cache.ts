// The directory where tokens are kept for later runs, of which there may be several at work.
//
//   tokens/<key>/        a token file; the key is a hash of the data, the tokenizer and the format
//   files/<hash>.json    the SHA-256 of data, as long as its files have these stamps
//   sessions/<name>/     of a process at work: `use.<key>` for each token file that it uses, and
//                        what it is making; whatever is left by a process that died is removed

import { createHash, randomBytes } from 'node:crypto';
import { readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { lockDirectory, nodeFiles, type OwnerLock } from '@shardweave/shard-store/node';
import { UsageError } from '../errors.js';
import { makeDirectory } from '../files/make-directory.js';
import { homeDirectory } from '../home-directory.js';
import { describeSystemError } from '../system-error.js';
import type { DataStamp } from './data-bytes.js';
import { hasTokenFile, TOKEN_FILES, TOKEN_FORMAT, type TokenIndex } from './token-file.js';

/** The bytes that tokens may take without SHARDWEAVE_CACHE_MAXSIZE: those of some 10 GB of text. */
const DEFAULT_CACHE_BYTES = 20 * 2 ** 30;

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * The directory where tokens are kept unless --cache sets it: SHARDWEAVE_CACHE, or else the
 * system's place for files that can be made again. Undefined where that is below a home and the
 * user has none.
 */
export function defaultCacheDirectory(
  env: Environment,
  { platform = process.platform, home = homeDirectory() } = {},
): string | undefined {
  if (env.SHARDWEAVE_CACHE) {
    return env.SHARDWEAVE_CACHE;
  }
  const [set, unset, name] =
    platform === 'darwin'
      ? [undefined, 'Library/Caches', 'shardweave']
      : platform === 'win32'
        ? [env.LOCALAPPDATA, 'AppData/Local', 'shardweave/cache']
        : [env.XDG_CACHE_HOME, '.cache', 'shardweave'];
  const caches = set || (home ? join(home, unset) : undefined);
  return caches && join(caches, name);
}

/**
 * The directory that --cache names, or else the default one.
 * @throws {UsageError} where there is none
 */
export function cacheDirectory(
  given: string | undefined,
  env: Environment,
  place: Parameters<typeof defaultCacheDirectory>[1] = {},
): string {
  const directory = given ?? defaultCacheDirectory(env, place);
  if (directory === undefined) {
    throw new UsageError(
      '--cache: expected a home directory for the tokens of data, but HOME is not set and the system knows no home of this user. Give a directory, or set SHARDWEAVE_CACHE to one.',
    );
  }
  return resolve(directory);
}

const UNITS = { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 };

/**
 * The most bytes that tokens may take, as SHARDWEAVE_CACHE_MAXSIZE says.
 * @throws {UsageError} where it is no size
 */
export function cacheLimit({ SHARDWEAVE_CACHE_MAXSIZE: text }: Environment): number {
  if (!text) {
    return DEFAULT_CACHE_BYTES;
  }
  const match = /^(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?$/i.exec(text);
  if (match === null) {
    throw new UsageError(
      `SHARDWEAVE_CACHE_MAXSIZE: expected bytes, such as 500MB or 20GiB, got ${JSON.stringify(text)}. Set it to a size, or leave it out.`,
    );
  }
  return Number(match[1]) * UNITS[match[2]!.toUpperCase() as keyof typeof UNITS];
}

/** A token file of the cache. */
export interface CachedTokens {
  readonly key: string;
  /** The data that it was made of; undefined for what another version has left. */
  readonly origin: TokenIndex['origin'] | undefined;
  readonly tokens: number;
  readonly bytes: number;
  readonly usedMs: number;
  readonly isInUse: boolean;
}

/**
 * A clock may tick this seldom in the times of files (FAT), so that a file which was changed a
 * moment ago may be changed again and have the same stamp.
 */
const TICK_MS = 2000;

const USE = 'use.';

export class TokenCache implements AsyncDisposable {
  readonly #directory: string;
  /** Undefined where nothing can be written there. */
  readonly #session: { readonly path: string; readonly lock: OwnerLock } | undefined;
  readonly #problem: unknown;

  private constructor(
    directory: string,
    session: { readonly path: string; readonly lock: OwnerLock } | undefined,
    problem?: unknown,
  ) {
    this.#directory = directory;
    this.#session = session;
    this.#problem = problem;
  }

  /**
   * Opens the cache for a process at work, which tells others what it uses until it is disposed of
   * or the process ends. What dead processes were making is removed.
   */
  static async open(directory: string): Promise<TokenCache> {
    const path = join(directory, 'sessions', randomBytes(8).toString('hex'));
    try {
      makeDirectory(join(directory, 'tokens'));
      makeDirectory(join(directory, 'files'));
      makeDirectory(path);
      const lock = await lockDirectory(nodeFiles, path);
      await removeDead(directory);
      return new TokenCache(directory, { path, lock });
    } catch (problem) {
      return new TokenCache(directory, undefined, problem);
    }
  }

  /**
   * A directory's path for a token file to be made there.
   * @throws {UsageError} where the cache can't be written
   */
  newPart(): string {
    if (this.#session === undefined) {
      const { path } = this.#problem as NodeJS.ErrnoException;
      throw new UsageError(
        `--cache: ${path ?? this.#directory} can't be written (${describeSystemError(this.#problem)}). Give a directory for tokens that can be made, or set SHARDWEAVE_CACHE to one.`,
        { cause: this.#problem },
      );
    }
    return join(this.#session.path, `${randomBytes(4).toString('hex')}.part`);
  }

  /** Uses the token file of that key, where it is there. */
  async use(key: string): Promise<string | undefined> {
    const path = join(this.#directory, 'tokens', key);
    // Whoever removes it looks for users afterwards; see #removeUnused.
    if (this.#session !== undefined) {
      await writeFile(join(this.#session.path, `${USE}${key}`), '');
    }
    if (!hasTokenFile(path)) {
      return undefined;
    }
    const now = new Date();
    await utimes(join(path, TOKEN_FILES.index), now, now).catch(() => undefined);
    return path;
  }

  /** Keeps a part that is whole, and uses it. Where another process was first, that one's stays. */
  async keep(part: string, key: string): Promise<string> {
    const path = join(this.#directory, 'tokens', key);
    const known = await this.use(key);
    if (known === undefined) {
      await rename(part, path).catch((error: unknown) => {
        if (!hasTokenFile(path)) {
          throw error;
        }
      });
    }
    await rm(part, { recursive: true, force: true });
    return path;
  }

  /**
   * The SHA-256 of data whose files have these stamps, where it is known. Note [stamps] says why it
   * is right.
   */
  async hashOf(stamp: DataStamp): Promise<string | undefined> {
    try {
      const note = JSON.parse(await readFile(this.#noteOf(stamp), 'utf8')) as FileNote;
      return isSameStamp(note.stamp, stamp) ? note.sha256 : undefined;
    } catch {
      return undefined;
    }
  }

  // Note [stamps]
  // A file that has been read is known again by its stamp: path, device, inode, size, mtime and
  // ctime. A program that writes to a file can set its mtime back, and its size and inode may stay,
  // but the system sets the ctime to the present time at every change. What remains is the grain of
  // that clock: a file that is changed, read, and changed again within one tick has one stamp for
  // two contents. So a hash is noted only where the file had rested for longer than any tick when
  // the reading began: a change after that moment has another ctime. Files that are younger are
  // hashed again by the next run, and noted then. A ctime in the future tells that the clocks of
  // the file and of this machine differ, and nothing is noted.
  //
  // A program that writes through a mapping of the file in memory is not seen at each store, but
  // when the system writes its pages back: such a file must not be prepared while it is written.

  /** Notes the hash of data whose reading began at `startMs`. */
  async note(stamp: DataStamp, sha256: string, startMs: number): Promise<void> {
    const times = stamp.flatMap(({ ctime, mtime }) => [Number(ctime), Number(mtime)]);
    const changedMs = Math.max(...times) / 1e6;
    if (this.#session === undefined || changedMs + TICK_MS >= startMs) {
      return;
    }
    const part = this.newPart();
    await writeFile(part, JSON.stringify({ stamp, sha256 } satisfies FileNote));
    await rename(part, this.#noteOf(stamp));
  }

  /** Whether tokens of some data of that size are there. */
  async hasSize(bytes: number): Promise<boolean> {
    const all = await listTokens(this.#directory);
    return all.some(({ origin }) => origin?.bytes === bytes);
  }

  /** Removes what was used least recently, until all take `limit` bytes; never what is in use. */
  async trim(limit: number): Promise<void> {
    const all = (await listTokens(this.#directory)).toSorted((a, b) => a.usedMs - b.usedMs);
    let sum = all.reduce((bytes, file) => bytes + file.bytes, 0);
    for (const each of all) {
      if (sum > limit && (await this.#removeUnused(each))) {
        sum -= each.bytes;
      }
    }
    await this.#forgetFiles();
  }

  /** Removes all that is not in use; resolves with what was. */
  async clear(): Promise<CachedTokens[]> {
    this.newPart(); // throws where nothing can be written
    const removed: CachedTokens[] = [];
    for (const each of await listTokens(this.#directory)) {
      if (await this.#removeUnused(each)) {
        removed.push(each);
      }
    }
    await this.#forgetFiles();
    return removed;
  }

  /** Ends the use of what was used. A cache that was removed meanwhile fails no run. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#session !== undefined) {
      const { path, lock } = this.#session;
      await lock.release().catch(() => undefined);
      await rm(path, { recursive: true, force: true }).catch(() => undefined);
    }
  }

  #noteOf(stamp: DataStamp): string {
    const paths = stamp.map(({ path }) => path).join('\0');
    const name = createHash('sha256').update(paths).digest('hex').slice(0, 32);
    return join(this.#directory, 'files', `${name}.json`);
  }

  /**
   * Takes a token file away before looking for users: one that has said so before is found, and one
   * that comes later finds nothing there.
   */
  async #removeUnused({ key, isInUse }: CachedTokens): Promise<boolean> {
    if (isInUse || this.#session === undefined) {
      return false;
    }
    const path = join(this.#directory, 'tokens', key);
    const gone = this.newPart();
    try {
      await rename(path, gone);
    } catch {
      return false; // another process has removed it, or may and this one may not
    }
    if ((await keysInUse(this.#directory)).has(key)) {
      await rename(gone, path).catch(() => undefined);
      return false;
    }
    await rm(gone, { recursive: true, force: true });
    return true;
  }

  /** Removes the notes about files of which no tokens are there. */
  async #forgetFiles(): Promise<void> {
    const all = await listTokens(this.#directory);
    const known = new Set(all.map(({ origin }) => origin?.sha256));
    const files = join(this.#directory, 'files');
    for (const name of await readdir(files).catch(() => [])) {
      const path = join(files, name);
      const sha256 = await readFile(path, 'utf8').then(
        (text) => (JSON.parse(text) as FileNote).sha256,
        () => undefined,
      );
      if (!known.has(sha256)) {
        await rm(path, { force: true });
      }
    }
  }
}

interface FileNote {
  readonly stamp: DataStamp;
  readonly sha256: string;
}

export function isSameStamp<Stamp>(one: Stamp, other: Stamp): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** The token files of a cache; none where there is no cache. */
export async function listTokens(directory: string): Promise<CachedTokens[]> {
  const tokens = join(directory, 'tokens');
  await removeDead(directory).catch(() => undefined); // else their tokens were in use for ever
  const used = await keysInUse(directory);
  const keys = await readdir(tokens).catch(() => []);
  const all = await Promise.all(
    keys.map((key) => look(join(tokens, key), key).catch(() => undefined)),
  );
  return all.flatMap((file) =>
    file === undefined ? [] : [{ ...file, isInUse: used.has(file.key) }],
  );
}

async function look(path: string, key: string): Promise<Omit<CachedTokens, 'isInUse'>> {
  const names = await readdir(path);
  const stats = await Promise.all(names.map((name) => stat(join(path, name))));
  const bytes = stats.reduce((sum, { size }) => sum + size, 0);
  const at = names.indexOf(TOKEN_FILES.index);
  const { mtimeMs: usedMs } = stats[at] ?? (await stat(path));
  const index =
    at < 0
      ? undefined
      : (JSON.parse(await readFile(join(path, TOKEN_FILES.index), 'utf8')) as TokenIndex);
  const isKnown = index?.format === TOKEN_FORMAT;
  return {
    key,
    origin: isKnown ? index.origin : undefined,
    tokens: index?.tokens ?? 0,
    bytes,
    usedMs,
  };
}

async function keysInUse(directory: string): Promise<Set<string>> {
  const sessions = join(directory, 'sessions');
  const names = await readdir(sessions).catch(() => []);
  const files = await Promise.all(
    names.map((name) => readdir(join(sessions, name)).catch(() => [])),
  );
  return new Set(
    files.flat().flatMap((name) => (name.startsWith(USE) ? [name.slice(USE.length)] : [])),
  );
}

/** Removes the sessions of dead processes, with what they were making. */
async function removeDead(directory: string): Promise<void> {
  const sessions = join(directory, 'sessions');
  for (const name of await readdir(sessions)) {
    const path = join(sessions, name);
    try {
      if ((await readdir(path)).length === 0) {
        continue; // it begins just now, and has no owner yet
      }
      const lock = await lockDirectory(nodeFiles, path);
      await lock.release();
      await rm(path, { recursive: true, force: true });
    } catch {
      // Its owner lives, or another process removes it.
    }
  }
}
