// For what a limit in milliseconds must leave room for: on a machine that has other things to do
// the limit grows, and what has come decides.

/** Calls `attempt` with ever longer limits until it says that all has come within one. */
export async function untilInTime(
  firstMs: number,
  attempt: (limitMs: number) => Promise<boolean>,
): Promise<void> {
  let limitMs = firstMs;
  while (!(await attempt(limitMs))) {
    limitMs *= 2;
  }
}

/** What a promise rejects with, which it must. */
export async function failureOf(promise: Promise<unknown>): Promise<Error> {
  try {
    await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error('it did not fail');
}
