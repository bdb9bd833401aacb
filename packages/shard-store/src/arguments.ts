// Checks of what callers pass, the same for every store.

import { StoreFullError, StoreUsageError, UnknownKeyError } from './errors.js';

export function checkKey(operation: string, key: string): void {
  if (typeof key !== 'string' || key === '') {
    throw new StoreUsageError(
      `${operation}: expected a key of one character or more, got '${key}'.`,
    );
  }
}

/** Throws unless `length` bytes from `offset` on lie in a value of `byteLength` bytes. */
export function checkRange(
  key: string,
  range: { readonly offset: number; readonly length: number },
  byteLength: number,
): void {
  const { offset, length } = range;
  if (Number.isSafeInteger(offset) && offset >= 0 && offset + length <= byteLength) return;
  throw new StoreUsageError(
    `read: expected a range within the ${byteLength} bytes of '${key}', ` +
      `got ${length} bytes from ${offset} on.`,
  );
}

/** The length of a value, or the error that a read of nothing gives. */
export function expectLength(key: string, byteLength: number | undefined, store: string): number {
  if (byteLength === undefined) throw new UnknownKeyError('read', key, store);
  return byteLength;
}

export function checkCount(option: string, value: number): number {
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new StoreUsageError(`${option}: expected an integer of 1 or more, got ${value}.`);
}

/** Throws unless `byteLength` more bytes for `key` stay below a cap. */
export function checkCapacity(key: string, wanted: number, maxBytes: number, store: string): void {
  if (wanted <= maxBytes) return;
  throw new StoreFullError(
    `write: expected at most ${maxBytes} bytes in all, got ${wanted} with '${key}' (${store}). ` +
      'Raise maxBytes or delete keys.',
  );
}
