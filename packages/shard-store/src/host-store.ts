// The store in host memory: copies of bytes in a map. It ends with its process; a commit only
// counts generations.

import {
  checkBytes,
  checkCapacity,
  checkCount,
  checkKey,
  checkOptions,
  checkRange,
  expectLength,
} from './arguments.js';
import { StoreClosedError, StoreIncompleteError } from './errors.js';
import { OperationOrder } from './operation-order.js';
import { PeakSizes } from './peak-sizes.js';
import type { ReadOptions, ShardStore, WriteOptions } from './store.js';

/** The limit of a store in host memory, in bytes. */
export interface HostStoreOptions {
  /** The bytes of all values together above which a write rejects with `FULL`. Default no limit. */
  readonly maxBytes?: number;
}

/**
 * A store of bytes in this process's memory.
 * @example
 * ```ts
 * import { createHostStore } from '@shardweave/shard-store';
 *
 * const store = createHostStore();
 * await store.write('block0.weight', Uint8Array.of(1, 2, 3));
 * const weight = new Uint8Array(store.byteLength('block0.weight') ?? 0);
 * await store.read('block0.weight', weight);
 * console.log(weight); // logs Uint8Array(3) [ 1, 2, 3 ]
 * await store.close();
 * ```
 */
export function createHostStore(options: HostStoreOptions = {}): ShardStore {
  checkOptions('createHostStore', options, ['maxBytes']);
  return new HostStore(options);
}

class HostStore implements ShardStore {
  readonly description = 'host memory';
  readonly locals = new Map<symbol, unknown>();
  readonly #maxBytes: number;
  readonly #order = new OperationOrder(1); // copies block the thread, so more at once gains nothing
  readonly #values = new Map<string, Uint8Array>();
  readonly #sizes = new PeakSizes();
  readonly #failed = new Map<string, unknown>();
  #byteLength = 0;
  #generation = 0;
  #closing: Promise<void> | undefined;

  constructor({ maxBytes }: HostStoreOptions) {
    this.#maxBytes = maxBytes === undefined ? Infinity : checkCount('maxBytes', maxBytes);
  }

  get generation(): number {
    return this.#generation;
  }

  get peakBytes(): number {
    return this.#sizes.bytes;
  }

  keys(): readonly string[] {
    return [...this.#values.keys()];
  }

  byteLength(key: string): number | undefined {
    return this.#values.get(key)?.byteLength;
  }

  async write(
    key: string,
    bytes: Uint8Array,
    { isGiven = false }: WriteOptions = {},
  ): Promise<void> {
    this.#checkOpen('write');
    checkKey('write', key);
    checkBytes('write', key, bytes);
    await this.#order.change(key, async () => {
      try {
        this.#replace(key, bytes, isGiven);
        this.#failed.delete(key);
      } catch (error) {
        this.#failed.set(key, error);
        throw error;
      }
    });
  }

  async read(key: string, into: Uint8Array, { offset = 0 }: ReadOptions = {}): Promise<void> {
    this.#checkOpen('read');
    checkBytes('read', key, into);
    await this.#order.read(key, async () => {
      const value = this.#values.get(key);
      const byteLength = expectLength(key, value?.byteLength, this.description);
      checkRange(key, { offset, length: into.byteLength }, byteLength);
      into.set(value!.subarray(offset, offset + into.byteLength));
    });
  }

  async delete(key: string): Promise<void> {
    this.#checkOpen('delete');
    await this.#order.change(key, async () => {
      this.#byteLength -= this.#values.get(key)?.byteLength ?? 0;
      this.#values.delete(key);
      this.#failed.delete(key);
    });
  }

  async withdraw(key: string): Promise<void> {
    this.#checkOpen('withdraw');
    await this.#order.change(key, async () => {
      this.#failed.delete(key);
    });
  }

  async commit(): Promise<void> {
    this.#checkOpen('commit');
    await this.#order.commit(async () => {
      if (this.#failed.size > 0) {
        const [cause] = this.#failed.values();
        throw new StoreIncompleteError([...this.#failed.keys()], this.description, cause);
      }
      this.#generation++;
    });
  }

  async close(): Promise<void> {
    this.#closing ??= this.#order.idle().then(() => this.#values.clear());
    await this.#closing;
  }

  #replace(key: string, bytes: Uint8Array, isGiven: boolean): void {
    const old = this.#values.get(key);
    const wanted = this.#byteLength - (old?.byteLength ?? 0) + bytes.byteLength;
    checkCapacity(key, wanted, this.#maxBytes, this.description);
    // A view of a larger buffer would keep the whole buffer in memory.
    if (isGiven && bytes.byteLength === bytes.buffer.byteLength) {
      this.#values.set(key, bytes);
    } else {
      const isSameSize = old?.byteLength === bytes.byteLength;
      const value = isSameSize ? old : new Uint8Array(bytes.byteLength);
      value.set(bytes);
      this.#values.set(key, value);
    }
    this.#sizes.add(key, bytes.byteLength);
    this.#byteLength = wanted;
  }

  #checkOpen(operation: string): void {
    if (this.#closing) {
      throw new StoreClosedError(operation, this.description);
    }
  }
}
