// A value of the disk store that stays as it is: its file has a second name, so the store writes
// the next value of the key into another file.

import { join } from 'node:path';
import { checkBytes, checkRange } from '../arguments.js';
import type { PinnedValue, ReadOptions } from '../store.js';
import { type FileLayer, linkIfPossible } from './file-layer.js';
import { isPin } from './file-names.js';
import { CHUNK_BYTES, readShard, type StoredValue } from './shard-file.js';

export interface PinnedFileOptions {
  readonly files: FileLayer;
  /** The second name of the file. */
  readonly path: string;
  /** Turns an error into one of the store's. */
  errorOf(operation: string, error: unknown): Error;
}

export class PinnedFile implements PinnedValue {
  readonly #key: string;
  readonly #value: StoredValue;
  readonly #options: PinnedFileOptions;
  #releasing: Promise<void> | undefined;

  constructor(key: string, value: StoredValue, options: PinnedFileOptions) {
    this.#key = key;
    this.#value = value;
    this.#options = options;
  }

  get byteLength(): number {
    return this.#value.byteLength;
  }

  async read(into: Uint8Array, { offset = 0 }: ReadOptions = {}): Promise<void> {
    checkBytes('read', this.#key, into);
    checkRange(this.#key, { offset, length: into.byteLength }, this.byteLength);
    const { files, path } = this.#options;
    const target = { into, offset, scratch: new Uint8Array(CHUNK_BYTES) };
    await this.#attempt('read', readShard(files, path, this.#value, target));
  }

  async linkAs(path: string): Promise<boolean> {
    return this.#attempt('linkAs', linkIfPossible(this.#options.files, this.#options.path, path));
  }

  async release(): Promise<void> {
    this.#releasing ??= this.#attempt('release', this.#options.files.unlink(this.#options.path));
    await this.#releasing;
  }

  async #attempt<T>(operation: string, call: Promise<T>): Promise<T> {
    try {
      return await call;
    } catch (error) {
      throw this.#options.errorOf(operation, error);
    }
  }
}

/** Removes the pins of a process that died. */
export async function removePins(files: FileLayer, directory: string): Promise<void> {
  for (const name of await files.list(directory)) {
    if (isPin(name)) {
      await files.unlink(join(directory, name));
    }
  }
}
