// Checks of what callers pass, the same for every store.

import { StoreFullError, StoreUsageError, UnknownKeyError } from './errors.js';

export function checkKey(operation: string, key: string): void {
  if (typeof key !== 'string' || key === '') {
    throw new StoreUsageError(
      `${operation}: expected a key of one character or more, got '${key}'.`,
    );
  }
}

/**
 * Throws unless `array` is a Uint8Array, of whichever realm: the elements of other arrays would be
 * cut to 8 bits.
 */
export function checkBytes(operation: string, key: string, array: Uint8Array): void {
  const name = Object.prototype.toString.call(array).slice('[object '.length, -1);
  if (name === 'Uint8Array') {
    return;
  }
  throw new StoreUsageError(
    `${operation}: expected a Uint8Array for '${key}', got ${name}. ` +
      'Pass new Uint8Array(array.buffer, array.byteOffset, array.byteLength).',
  );
}

/** Throws where an option's name is not among `known`. */
export function checkOptions(where: string, options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown === undefined) {
    return;
  }
  throw new StoreUsageError(
    `${where}: expected options among ${known.join(', ')}, got '${unknown}'.`,
  );
}

/** Throws unless `length` bytes from `offset` on lie within a value of `byteLength` bytes. */
export function checkRange(
  key: string,
  range: { readonly offset: number; readonly length: number },
  byteLength: number,
): void {
  const { offset, length } = range;
  if (Number.isSafeInteger(offset) && offset >= 0 && offset + length <= byteLength) {
    return;
  }
  throw new StoreUsageError(
    `read: expected a range within the ${byteLength} bytes of '${key}', ` +
      `got ${length} bytes from ${offset} on.`,
  );
}

/** The length of a value; throws UnknownKeyError where there is no value. */
export function expectLength(key: string, byteLength: number | undefined, store: string): number {
  if (byteLength === undefined) {
    throw new UnknownKeyError('read', key, store);
  }
  return byteLength;
}

export function checkDirectory(path: string): void {
  if (typeof path === 'string' && path !== '') {
    return;
  }
  throw new StoreUsageError(`directory: expected a path, got '${path}'.`);
}

export function checkCount(option: string, value: number): number {
  if (Number.isSafeInteger(value) && value >= 1) {
    return value;
  }
  throw new StoreUsageError(`${option}: expected an integer of 1 or more, got ${value}.`);
}

/**
 * Throws unless `wanted` bytes, the total that a write of `key` would make, stay within the cap.
 */
export function checkCapacity(key: string, wanted: number, maxBytes: number, store: string): void {
  if (wanted <= maxBytes) {
    return;
  }
  throw new StoreFullError(
    `write: expected at most ${maxBytes} bytes in all, got ${wanted} with '${key}' (${store}). ` +
      'Raise maxBytes or delete keys.',
  );
}
