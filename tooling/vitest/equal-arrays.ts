// Lets toEqual compare arrays of numbers as fast as a loop does. Vitest makes a list of each one's
// keys as texts, a twentieth of a profile of tests of fsdp and offload. What is equal to what stays
// as it is: an array of the same kind, with NaN where there is NaN, and -0 where there is -0.
import { expect } from 'vitest';

type List = ArrayLike<unknown>;

/** Whether two arrays are equal, or undefined where vitest has to look closer. */
export function equalArrays(a: unknown, b: unknown): boolean | undefined {
  if (!isList(a) || !isList(b) || kindOf(a) !== kindOf(b)) {
    return undefined;
  }
  // An array may hold objects, which are equal to others.
  return areSame(a, b) ? true : Array.isArray(a) ? undefined : false;
}

function isList(value: unknown): value is List {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}

function kindOf(list: List): string {
  return Object.prototype.toString.call(list);
}

function areSame(a: List, b: List): boolean {
  for (let i = 0; i < a.length; i++) {
    if (!Object.is(a[i], b[i])) {
      return false;
    }
  }
  return a.length === b.length;
}

// Vitest loads this anew for each file of a process, and keeps what it was given before.
const INSTALLED = Symbol.for('shardweave.equal-arrays');
if (!Reflect.has(globalThis, INSTALLED)) {
  Reflect.set(globalThis, INSTALLED, true);
  expect.addEqualityTesters([equalArrays]);
}
