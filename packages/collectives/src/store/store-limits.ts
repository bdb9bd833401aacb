// Limits what a store accepts, so that no client can fill the memory of the rank that serves it.

import { StoreError } from '../errors.js';

/**
 * What a store accepts of all its clients together. A client beyond `maxClients` is refused, and a
 * call that would exceed another limit rejects with StoreError STORE_LIMIT. DEFAULT_STORE_LIMITS
 * has the defaults.
 */
export interface StoreLimits {
  /** The most connections at a time. */
  readonly maxClients: number;
  /** The most keys of all runs together, including those that are waited for. */
  readonly maxKeys: number;
  /** The most bytes of all keys and values together. */
  readonly maxBytes: number;
  readonly maxValueBytes: number;
  /** The longest key, in UTF-16 units. */
  readonly maxKeyLength: number;
  /** The most keys in one wait or check. */
  readonly maxKeysPerCall: number;
  /** The most calls of one client that may be waiting. */
  readonly maxPendingCalls: number;
}

/** Enough for a world of a thousand ranks that tell each other addresses, and no more. */
export const DEFAULT_STORE_LIMITS: StoreLimits = {
  maxClients: 2048,
  maxKeys: 65_536,
  maxBytes: 256 * 1024 * 1024,
  maxValueBytes: 1024 * 1024,
  maxKeyLength: 1024,
  maxKeysPerCall: 1024,
  maxPendingCalls: 1024,
};

/** Counts the keys and bytes of one server. */
export class StoreBudget {
  readonly limits: StoreLimits;
  #numKeys = 0;
  #bytes = 0;

  constructor(limits: StoreLimits) {
    this.limits = limits;
  }

  /**
   * Counts keys and bytes; negative numbers give them back.
   * @throws {StoreError} STORE_LIMIT where there is no room; nothing is counted then
   */
  change(what: string, numKeys: number, bytes: number): void {
    const { maxKeys, maxBytes } = this.limits;
    if (numKeys > 0 && this.#numKeys + numKeys > maxKeys) {
      throw new StoreError(
        'STORE_LIMIT',
        `${what}: the store has ${maxKeys} keys and takes no more`,
      );
    }
    if (bytes > 0 && this.#bytes + bytes > maxBytes) {
      const text = `the store has ${this.#bytes} bytes and takes ${maxBytes} at most`;
      throw new StoreError('STORE_LIMIT', `${what}: ${text}`);
    }
    this.#numKeys += numKeys;
    this.#bytes += bytes;
  }
}
