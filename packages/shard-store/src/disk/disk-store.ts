// The store that keeps its values in a directory. See Note [generations] in generations.ts.

import { dirname, join, resolve } from 'node:path';
import {
  checkBytes,
  checkCount,
  checkDirectory,
  checkKey,
  checkOptions,
  checkRange,
  expectLength,
} from '../arguments.js';
import {
  StoreClosedError,
  StoreCorruptError,
  StoreError,
  StoreFullError,
  StoreIncompleteError,
  StoreIoError,
} from '../errors.js';
import { OperationOrder } from '../operation-order.js';
import { PeakSizes } from '../peak-sizes.js';
import type { PinnedValue, ReadOptions, ShardStore } from '../store.js';
import { type FileLayer, linkIfPossible } from './file-layer.js';
import { type Place, pinFile, slotFile } from './file-names.js';
import { Generations } from './generations.js';
import type { Entry } from './manifest.js';
import { nodeFiles } from './node-files.js';
import { lockDirectory, type OwnerLock } from './owner-lock.js';
import { PinnedFile, removePins } from './pinned-file.js';
import { CHUNK_BYTES, readShard, writeShard } from './shard-file.js';

/** The directory of a store on disk, and how it reads, writes and commits. */
export interface DiskStoreOptions {
  /**
   * The directory of the files; created where it does not exist. One store at a time may have it.
   */
  readonly directory: string;
  /**
   * Whether a commit waits until everything has reached the device itself. Default false. Without
   * it a commit survives the death of the process, but perhaps not that of the machine; reads then
   * find damage by checksum.
   */
  readonly fsync?: boolean;
  /**
   * The number of reads and writes that run at once. Default 4, as many as Node has threads for
   * files.
   */
  readonly maxConcurrent?: number;
  /** The file system. Default: Node's. */
  readonly files?: FileLayer;
}

/**
 * Opens the last generation of a directory, or an empty store where there is none.
 * @example
 * ```ts
 * import { mkdtemp } from 'node:fs/promises';
 * import { tmpdir } from 'node:os';
 * import { join } from 'node:path';
 * import { openDiskStore } from '@shardweave/shard-store/node';
 *
 * const directory = await mkdtemp(join(tmpdir(), 'state-'));
 * let store = await openDiskStore({ directory });
 * await store.write('weight', Uint8Array.of(1, 2, 3));
 * await store.commit(); // what a next owner finds
 * await store.write('weight', Uint8Array.of(4, 5, 6));
 * await store.close();
 *
 * store = await openDiskStore({ directory });
 * const weight = new Uint8Array(3);
 * await store.read('weight', weight);
 * console.log(weight); // logs Uint8Array(3) [ 1, 2, 3 ]
 * await store.close();
 * ```
 */
export async function openDiskStore(options: DiskStoreOptions): Promise<ShardStore> {
  const { fsync = false, maxConcurrent = 4, files = nodeFiles } = options;
  checkOptions('openDiskStore', options, ['directory', 'fsync', 'maxConcurrent', 'files']);
  checkCount('maxConcurrent', maxConcurrent);
  checkDirectory(options.directory);
  const directory = resolve(options.directory);
  const failed = (error: unknown) => toStoreError('openDiskStore', directory, error);
  let lock: OwnerLock | undefined;
  try {
    const made = await files.makeDirectory(directory);
    if (fsync && made !== undefined) {
      await syncNames(files, made, directory);
    }
    lock = await lockDirectory(files, directory);
    const generations = await Generations.open({ files, directory, fsync });
    await removePins(files, directory);
    return new DiskStore({ directory, files, lock, generations, maxConcurrent });
  } catch (error) {
    await lock?.release().catch(() => {}); // the first error is the one to report
    throw failed(error);
  }
}

/** Makes the names of directories durable, from `first` down to `last`. */
async function syncNames(files: FileLayer, first: string, last: string): Promise<void> {
  for (let directory = last; ; directory = dirname(directory)) {
    await files.syncDirectory(dirname(directory));
    if (directory === first || directory === dirname(directory)) {
      return;
    }
  }
}

interface DiskStoreParts {
  readonly directory: string;
  readonly files: FileLayer;
  readonly lock: OwnerLock;
  readonly generations: Generations;
  readonly maxConcurrent: number;
}

class DiskStore implements ShardStore {
  readonly description: string;
  readonly locals = new Map<symbol, unknown>();
  readonly #parts: DiskStoreParts;
  readonly #order: OperationOrder;
  /** The committed entries with what was changed since. */
  readonly #current: Map<string, Entry>;
  readonly #sizes = new PeakSizes();
  readonly #failed = new Map<string, unknown>();
  /** Memory for partial chunks; at most as many as operations run at once. */
  readonly #scratches: Uint8Array[] = [];
  #numPins = 0;
  #closing: Promise<void> | undefined;

  constructor(parts: DiskStoreParts) {
    this.#parts = parts;
    this.description = `disk ${parts.directory}`;
    this.#order = new OperationOrder(parts.maxConcurrent);
    this.#current = new Map(parts.generations.entries);
  }

  get generation(): number {
    return this.#parts.generations.number;
  }

  get peakBytes(): number {
    return this.#sizes.bytes;
  }

  keys(): readonly string[] {
    return [...this.#current.keys()];
  }

  byteLength(key: string): number | undefined {
    return this.#current.get(key)?.byteLength;
  }

  async write(key: string, bytes: Uint8Array): Promise<void> {
    this.#checkOpen('write');
    checkKey('write', key);
    checkBytes('write', key, bytes);
    await this.#order.change(key, async () => {
      const place = this.#parts.generations.placeFor(key, this.#current.get(key));
      const path = this.#pathOf(place);
      try {
        const value = await writeShard(this.#parts.files, path, bytes);
        this.#current.set(key, { ...place, ...value });
        this.#sizes.add(key, bytes.byteLength, place.slot + 1);
        this.#failed.delete(key);
      } catch (error) {
        this.#failed.set(key, error);
        await this.#parts.files.unlink(path).catch(() => {}); // gives its room back
        throw this.#errorOf('write', key, error);
      }
    });
  }

  async read(key: string, into: Uint8Array, { offset = 0 }: ReadOptions = {}): Promise<void> {
    this.#checkOpen('read');
    checkBytes('read', key, into);
    await this.#order.read(key, async () => {
      const entry = this.#current.get(key);
      const byteLength = expectLength(key, entry?.byteLength, this.description);
      checkRange(key, { offset, length: into.byteLength }, byteLength);
      const scratch = this.#scratches.pop() ?? new Uint8Array(CHUNK_BYTES);
      try {
        const target = { into, offset, scratch };
        await readShard(this.#parts.files, this.#pathOf(entry!), entry!, target);
      } catch (error) {
        throw this.#errorOf('read', key, error);
      } finally {
        this.#scratches.push(scratch);
      }
    });
  }

  async delete(key: string): Promise<void> {
    this.#checkOpen('delete');
    await this.#order.change(key, async () => {
      this.#current.delete(key);
      this.#failed.delete(key);
    });
  }

  async withdraw(key: string): Promise<void> {
    this.#checkOpen('withdraw');
    await this.#order.change(key, async () => {
      this.#failed.delete(key);
    });
  }

  async pin(key: string): Promise<PinnedValue | undefined> {
    this.#checkOpen('pin');
    checkKey('pin', key);
    let pinned: PinnedValue | undefined;
    await this.#order.read(key, async () => {
      const entry = this.#current.get(key);
      expectLength(key, entry?.byteLength, this.description);
      const { files, directory } = this.#parts;
      this.#numPins += 1;
      const path = join(directory, pinFile(entry!, this.#numPins));
      try {
        if (await linkIfPossible(files, this.#pathOf(entry!), path)) {
          const errorOf = (operation: string, error: unknown) =>
            this.#errorOf(operation, key, error);
          pinned = new PinnedFile(key, entry!, { files, path, errorOf });
        }
      } catch (error) {
        throw this.#errorOf('pin', key, error);
      }
    });
    return pinned;
  }

  async commit(): Promise<void> {
    this.#checkOpen('commit');
    await this.#order.commit(async () => {
      if (this.#failed.size > 0) {
        const [cause] = this.#failed.values();
        throw new StoreIncompleteError([...this.#failed.keys()], this.description, cause);
      }
      try {
        // Reads go on meanwhile; changes wait.
        await this.#parts.generations.commit(new Map(this.#current));
      } catch (error) {
        throw this.#errorOf('commit', undefined, error);
      }
    });
  }

  async close(): Promise<void> {
    this.#closing ??= this.#order.idle().then(() => this.#parts.lock.release());
    await this.#closing.catch((error: unknown) => {
      throw this.#errorOf('close', undefined, error);
    });
  }

  #pathOf(place: Place): string {
    return join(this.#parts.directory, slotFile(place));
  }

  #checkOpen(operation: string): void {
    if (this.#closing) {
      throw new StoreClosedError(operation, this.description);
    }
  }

  #errorOf(operation: string, key: string | undefined, error: unknown): StoreError {
    const subject = key === undefined ? '' : ` of '${key}'`;
    return toStoreError(`${operation}${subject}`, this.#parts.directory, error);
  }
}

function toStoreError(what: string, directory: string, error: unknown): StoreError {
  const message = error instanceof Error ? error.message : String(error);
  const place = `(disk ${directory})`;
  if (error instanceof StoreCorruptError) {
    return new StoreCorruptError(`${what}: ${message} ${place}.`, { cause: error });
  }
  if (error instanceof StoreError) {
    return error;
  }
  switch (codeOf(error)) {
    case 'ENOSPC':
    case 'EDQUOT':
      return new StoreFullError(
        `${what}: expected room on the disk, got none: ${message} ${place}. ` +
          'The last generation is whole; make room and try again.',
        { cause: error },
      );
    case 'ENOENT':
      return new StoreCorruptError(`${what}: a file is missing: ${message} ${place}.`, {
        cause: error,
      });
    default:
      return new StoreIoError(`${what}: ${message} ${place}.`, { cause: error });
  }
}

function codeOf(error: unknown): string | undefined {
  return (error as NodeJS.ErrnoException | undefined)?.code;
}
