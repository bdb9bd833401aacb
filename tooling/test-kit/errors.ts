// What a call is refused with. It depends on no test runner.

import assert from 'node:assert/strict';

/** Returns what a promise rejects with. It fails where the promise resolves. */
export function errorOf<E = unknown>(running: Promise<unknown>): Promise<E> {
  return running.then(
    () => assert.fail('expected an error'),
    (error: E) => error,
  );
}
