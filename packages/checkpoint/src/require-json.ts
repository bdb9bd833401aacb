// Checks that a value is what it will be when it is read from JSON again. JSON.stringify drops or
// replaces what it has no form for without a word: Infinity becomes null, a Map an empty object.

import { CheckpointUsageError } from './errors.js';

/**
 * Refuses a value that JSON would change or drop, such as the `extra` of a save.
 * @param where the name of the value, such as `extra`
 * @throws {CheckpointUsageError} naming the first place that JSON can't keep: numbers that are not
 * finite, undefined, functions, instances of classes, arrays with holes or names, cycles
 */
export function requireJson(value: unknown, where: string): void {
  check(value, where, []);
}

function check(value: unknown, path: string, around: readonly unknown[]): void {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') {
    return;
  }
  if (typeof value === 'number') {
    refuseUnless(Number.isFinite(value), path, value);
    return;
  }
  refuseUnless(typeof value === 'object', path, value);
  const object = value as object;
  if (around.includes(object)) {
    throw wrong(path, 'a value that contains itself');
  }
  const isArray = Array.isArray(object);
  const prototype: object | null = Object.getPrototypeOf(object);
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  refuseUnless(isArray || isPlain, path, object);
  if ('toJSON' in object) {
    throw wrong(path, 'an object with toJSON');
  }
  const keys = Reflect.ownKeys(object).filter((key) => !(isArray && key === 'length'));
  for (const [i, key] of keys.entries()) {
    // An array has exactly the keys 0, 1, 2 and so on.
    if (typeof key === 'symbol' || (isArray && key !== String(i))) {
      throw wrong(path, isArray ? 'an array with holes or names' : `the key ${String(key)}`);
    }
    const inner = isArray ? `${path}[${key}]` : `${path}.${key}`;
    const { enumerable } = Object.getOwnPropertyDescriptor(object, key)!;
    refuseUnless(enumerable === true, inner, 'a property that is not enumerable');
    check((object as Record<string, unknown>)[key], inner, [...around, object]);
  }
  if (isArray && keys.length !== object.length) {
    throw wrong(path, 'an array with holes or names');
  }
}

function refuseUnless(holds: boolean, path: string, value: unknown): void {
  if (!holds) {
    throw wrong(path, shown(value));
  }
}

function shown(value: unknown): string {
  switch (typeof value) {
    case 'object':
      return `an instance of ${value!.constructor?.name || 'a class'}`;
    case 'function':
      return 'a function';
    case 'bigint':
      return `the bigint ${value}`;
    default:
      return String(value);
  }
}

function wrong(path: string, got: string): CheckpointUsageError {
  return new CheckpointUsageError(
    `save: expected JSON at ${path}, which reads back as it was written, got ${got}. Save a number, a text, true, false, null, or arrays and plain objects of these; a text may stand for the rest.`,
  );
}
