// A store that keeps only the lengths of values, to show how much room they would take.

import { checkBytes, checkKey, checkOptions, checkRange, expectLength } from './arguments.js';
import { freeSlot } from './disk/file-names.js';
import { StoreClosedError } from './errors.js';
import { PeakSizes } from './peak-sizes.js';
import type { ReadOptions, ShardStore } from './store.js';

/** What a dry store stands for. */
export interface DryStoreOptions {
  /** Whether `peakBytes` counts files as a store on disk has them. Default false. */
  readonly isOnDisk?: boolean;
}

/** Makes a store that works like a host store, except that a read leaves its array unchanged. */
export function createDryStore(options: DryStoreOptions = {}): ShardStore {
  checkOptions('createDryStore', options, ['isOnDisk']);
  return new DryStore(options);
}

interface DryValue {
  readonly byteLength: number;
  readonly slot: number;
}

class DryStore implements ShardStore {
  readonly description = 'dry store';
  readonly isDry = true;
  readonly locals = new Map<symbol, unknown>();
  readonly #isOnDisk: boolean;
  readonly #current = new Map<string, DryValue>();
  readonly #sizes = new PeakSizes();
  #committed: ReadonlyMap<string, DryValue> = new Map();
  #generation = 0;
  #isClosed = false;

  constructor({ isOnDisk = false }: DryStoreOptions) {
    this.#isOnDisk = isOnDisk;
  }

  get generation(): number {
    return this.#generation;
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
    const taken = [this.#current.get(key), this.#committed.get(key)];
    const slot = this.#isOnDisk ? freeSlot(taken) : 0;
    this.#current.set(key, { byteLength: bytes.byteLength, slot });
    this.#sizes.add(key, bytes.byteLength, slot + 1);
  }

  async read(key: string, into: Uint8Array, { offset = 0 }: ReadOptions = {}): Promise<void> {
    this.#checkOpen('read');
    checkBytes('read', key, into);
    const byteLength = expectLength(key, this.byteLength(key), this.description);
    checkRange(key, { offset, length: into.byteLength }, byteLength);
  }

  async delete(key: string): Promise<void> {
    this.#checkOpen('delete');
    this.#current.delete(key);
  }

  async withdraw(): Promise<void> {
    this.#checkOpen('withdraw');
  }

  async commit(): Promise<void> {
    this.#checkOpen('commit');
    this.#committed = new Map(this.#current);
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
