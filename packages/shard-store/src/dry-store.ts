// A store that keeps only the lengths of values, to show how much room they would take.

import { checkBytes, checkKey, checkRange, expectLength } from './arguments.js';
import { StoreClosedError } from './errors.js';
import type { ReadOptions, ShardStore } from './store.js';

/** Makes a store that works like a host store, except that a read leaves its array unchanged. */
export function createDryStore(): ShardStore {
  return new DryStore();
}

class DryStore implements ShardStore {
  readonly description = 'dry store';
  readonly isDry = true;
  readonly locals = new Map<symbol, unknown>();
  readonly #lengths = new Map<string, number>();
  #generation = 0;
  #isClosed = false;

  get generation(): number {
    return this.#generation;
  }

  keys(): readonly string[] {
    return [...this.#lengths.keys()];
  }

  byteLength(key: string): number | undefined {
    return this.#lengths.get(key);
  }

  async write(key: string, bytes: Uint8Array): Promise<void> {
    this.#checkOpen('write');
    checkKey('write', key);
    checkBytes('write', key, bytes);
    this.#lengths.set(key, bytes.byteLength);
  }

  async read(key: string, into: Uint8Array, { offset = 0 }: ReadOptions = {}): Promise<void> {
    this.#checkOpen('read');
    checkBytes('read', key, into);
    const byteLength = expectLength(key, this.#lengths.get(key), this.description);
    checkRange(key, { offset, length: into.byteLength }, byteLength);
  }

  async delete(key: string): Promise<void> {
    this.#checkOpen('delete');
    this.#lengths.delete(key);
  }

  async withdraw(): Promise<void> {
    this.#checkOpen('withdraw');
  }

  async commit(): Promise<void> {
    this.#checkOpen('commit');
    this.#generation++;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
  }

  #checkOpen(operation: string): void {
    if (this.#isClosed) {
      throw new StoreClosedError(operation, this.description);
    }
  }
}
