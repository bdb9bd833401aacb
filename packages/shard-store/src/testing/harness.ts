// What the conformance suite needs of a store, and what it gives to a test runner. It depends on no
// runner and on nothing of Node, so it also runs in a page.

import { StoreError, type StoreErrorCode } from '../errors.js';
import type { ShardStore } from '../store.js';

/** Makes and reopens the stores that are tested. */
export interface StoreHarness {
  readonly name: string;
  /** An empty store. With `maxBytes` it is full when its values have that many bytes, or sooner. */
  create(options?: { readonly maxBytes?: number }): Promise<ShardStore>;
  /** Closes a store and opens what it left; absent where a store leaves nothing. */
  readonly reopen?: (store: ShardStore) => Promise<ShardStore>;
}

/** A test that every store must pass. */
export interface StoreCase {
  readonly name: string;
  /** Whether the case applies only to stores that outlive their owner. */
  readonly needsReopen: boolean;
  /** Rejects where the store does not conform. */
  run(harness: StoreHarness): Promise<void>;
}

/** Bytes that differ from seed to seed, with a period that divides no power of two. */
export function pattern(byteLength: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(byteLength);
  for (let i = 0; i < byteLength; i++) {
    bytes[i] = (i % 251) ^ (seed * 37);
  }
  return bytes;
}

/** Throws unless `condition` holds. */
export function check(condition: boolean, message: string): asserts condition {
  if (!condition) {
    throw new Error(message);
  }
}

/** Throws unless the store has exactly these values. */
export async function checkContents(
  store: ShardStore,
  expected: Readonly<Record<string, Uint8Array>>,
): Promise<void> {
  const [keys, wanted] = [[...store.keys()].sort(), Object.keys(expected).sort()];
  check(keys.join() === wanted.join(), `expected the keys ${wanted}, got ${keys}`);
  for (const [key, bytes] of Object.entries(expected)) {
    await checkValue(store, key, bytes);
  }
}

/** Throws unless `key` has this value. */
export async function checkValue(
  store: ShardStore,
  key: string,
  expected: Uint8Array,
): Promise<void> {
  const byteLength = store.byteLength(key);
  check(
    byteLength === expected.byteLength,
    `'${key}': ${byteLength} bytes, not ${expected.length}`,
  );
  const actual = new Uint8Array(expected.byteLength);
  await store.read(key, actual);
  checkBytes(actual, expected, `'${key}'`);
}

/** Throws unless the bytes are equal; the message has the first place where they differ. */
export function checkBytes(actual: Uint8Array, expected: Uint8Array, what: string): void {
  check(
    actual.length === expected.length,
    `${what}: ${actual.length}, not ${expected.length} bytes`,
  );
  for (let i = 0; i < expected.length; i++) {
    if (actual[i] !== expected[i]) {
      throw new Error(`${what}: byte ${i}: expected ${expected[i]}, got ${actual[i]}`);
    }
  }
}

/** The error that `promise` rejects with, a StoreError of `code`. */
export async function rejection(
  promise: Promise<unknown>,
  code: StoreErrorCode,
): Promise<StoreError> {
  const outcome = await promise.then(
    () => 'resolved' as const,
    (error: unknown) => ({ error }),
  );
  check(outcome !== 'resolved', `expected ${code}, but it resolved`);
  const { error } = outcome;
  check(error instanceof StoreError, `expected a StoreError, got ${error}`);
  check(error.code === code, `expected ${code}, got ${error.code}: ${error.message}`);
  return error;
}
