// What the conformance suite needs of a transport, and what it gives to a test runner. It depends
// on no runner and on nothing of Node, so it also runs in a page.

import type { CollectiveErrorCode } from '../errors.js';
import { CollectiveError } from '../errors.js';
import type { GroupOptions } from '../group/group-options.js';
import type { ProcessGroup } from '../group/process-group.js';

/** One rank of a job under test. */
export interface TestRank {
  readonly group: ProcessGroup;
  /** Ends the rank as if its process were killed: links drop without a word. */
  kill(): void;
  /**
   * Makes it fall silent as a stopped process would: its connections stay open, and nothing comes
   * any more. Only ranks that were made with `isStoppable` have it.
   */
  stop?(): void;
}

/** What cases ask for; it is passed on to whatever makes the groups. */
export interface HarnessOptions extends Pick<GroupOptions, 'timeoutMs' | 'hosts' | 'clock'> {
  /**
   * The ranks have `stop`, and notice a silent rank within five seconds. Only STOP_CASE asks for
   * it.
   */
  readonly isStoppable?: boolean;
}

/**
 * The title of the case that needs `stop`. A harness without it skips the case, and gives the
 * reason.
 */
export const STOP_CASE = 'a stopped rank is missed by all others, in pending and later calls';

/**
 * A transport as the conformance suite takes it: how to make a job of it, in which world sizes, and
 * what it can't do.
 */
export interface TransportHarness {
  readonly name: string;
  readonly worldSizes: readonly number[];
  /** A connected job, ranks in order; where ranks are processes, the ranks of this process. */
  create(worldSize: number, options?: HarnessOptions): Promise<TestRank[]>;
  /** The names of cases that the transport can't pass, each with the reason. */
  readonly skip?: Readonly<Record<string, string>>;
}

/** One property that every transport has to have, as a case for any test runner. */
export interface ConformanceCase {
  readonly name: string;
  /**
   * The world sizes that the case makes sense for; a runner takes those that the harness has, too.
   */
  readonly worldSizes: readonly number[];
  /** Rejects where the transport does not conform. */
  run(harness: TransportHarness, worldSize: number): Promise<void>;
}

/** Creates a job, runs `body` on all ranks at once, and closes all of them. */
export async function onRanks(
  harness: TransportHarness,
  worldSize: number,
  body: (group: ProcessGroup, rank: TestRank) => Promise<void>,
  options: HarnessOptions = {},
): Promise<void> {
  const ranks = await harness.create(worldSize, options);
  try {
    await Promise.all(ranks.map((rank) => body(rank.group, rank)));
  } finally {
    await Promise.all(ranks.map(({ group }) => group.close()));
  }
}

/** Throws unless `condition` holds. */
export function check(condition: boolean, message: string): asserts condition {
  if (!condition) {
    throw new Error(message);
  }
}

/** Throws unless the bytes are equal; the message has the first place where they differ. */
export function checkBytes(actual: Uint8Array, expected: Uint8Array, what: string): void {
  check(
    actual.length === expected.length,
    `${what}: expected ${expected.length} bytes, got ${actual.length}`,
  );
  // Words are compared first, because some cases compare many MiB.
  const numWords = actual.byteOffset % 4 || expected.byteOffset % 4 ? 0 : expected.length >>> 2;
  const [a, b] = [actual, expected].map(
    (bytes) => new Int32Array(bytes.buffer, numWords === 0 ? 0 : bytes.byteOffset, numWords),
  ) as [Int32Array, Int32Array];
  let equalWords = 0;
  while (equalWords < numWords && a[equalWords] === b[equalWords]) {
    equalWords++;
  }
  for (let i = equalWords * 4; i < expected.length; i++) {
    if (actual[i] !== expected[i]) {
      throw new Error(`${what}: byte ${i}: expected ${expected[i]}, got ${actual[i]}`);
    }
  }
}

/**
 * The error that `promise` rejects with, which is a CollectiveError of `code`. `limitMs` is for
 * promises that never reject, on the slowest machine; 0 means before the next turn of the event
 * loop.
 */
export async function rejection(
  promise: Promise<unknown>,
  code: CollectiveErrorCode,
  limitMs = 30_000,
): Promise<CollectiveError> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<'late'>((resolve) => {
    timer = setTimeout(() => resolve('late'), limitMs);
  });
  const outcome = await Promise.race([
    promise.then(
      () => 'resolved' as const,
      (error: unknown) => ({ error }),
    ),
    late,
  ]);
  clearTimeout(timer);
  check(typeof outcome === 'object', `expected ${code} within ${limitMs} ms, got: ${outcome}`);
  const { error } = outcome;
  check(error instanceof CollectiveError, `expected a CollectiveError, got ${error}`);
  check(error.code === code, `expected ${code}, got ${error.code}: ${error.message}`);
  return error;
}

/** Resolves after `ms`. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
