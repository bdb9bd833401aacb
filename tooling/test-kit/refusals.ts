// Calls that are refused: what they throw, alone and on each of several ranks.

import assert from 'node:assert/strict';
import { expect } from 'vitest';
import { onRanks, type Rank } from './ranks.ts';

/** Returns a value as plain JavaScript passes it, without a type. */
// biome-ignore lint/suspicious/noExplicitAny: what the types forbid
export const loose = (value: unknown) => value as any;

/** Returns what a call throws or rejects with, or undefined where it does neither. */
export async function errorOf(call: () => unknown): Promise<Error | undefined> {
  try {
    await call();
  } catch (error) {
    return error as Error;
  }
  return undefined;
}

/** Returns what a promise rejects with; a promise that resolves fails the test. */
export function rejectionOf<E = unknown>(running: Promise<unknown>): Promise<E> {
  return running.then(
    () => assert.fail('expected an error'),
    (error: E) => error,
  );
}

/** Runs a body on every rank at once, and returns what each threw, in rank order. */
export function errorsOnRanks(
  worldSize: number,
  body: (rank: Rank) => unknown,
): Promise<(Error | undefined)[]> {
  return onRanks(worldSize, (rank) => errorOf(() => body(rank)));
}

/** Expects every rank to be refused a call by an error of this class. Returns rank 0's message. */
export async function refusal(
  type: unknown,
  call: (rank: Rank) => unknown,
  worldSize = 1,
): Promise<string> {
  const errors = await errorsOnRanks(worldSize, call);
  for (const error of errors) {
    expect(error).toBeInstanceOf(type);
  }
  return errors[0]!.message;
}
