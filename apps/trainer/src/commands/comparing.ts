// What commands have in common that compare: by their exit codes scripts know equal from not equal,
// and both from what could not be told.

import { failureOf, UsageError } from '../errors.js';

/**
 * Runs what resolves to 0 where all is equal, and to 1 where it is not.
 * @throws {UsageError} where it can't be told, for whatever reason, so that the exit code is 2
 */
export async function comparing(compare: () => Promise<number>): Promise<number> {
  try {
    return await compare();
  } catch (error) {
    const { exitCode, failure } = failureOf(error);
    throw exitCode === 1 ? new UsageError(failure, { cause: error }) : error;
  }
}
