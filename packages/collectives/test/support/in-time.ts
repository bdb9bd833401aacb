// Some behavior depends on a limit in milliseconds. On a busy machine these functions wait with
// growing limits, and what has come within one of them decides.

/** Calls `attempt` with ever longer limits until it returns that everything has come within one. */
export async function untilInTime(
  firstMs: number,
  attempt: (limitMs: number) => Promise<boolean>,
): Promise<void> {
  let limitMs = firstMs;
  while (!(await attempt(limitMs))) {
    limitMs *= 2;
  }
}

/** Returns the error of a promise that must reject. */
export async function failureOf(promise: Promise<unknown>): Promise<Error> {
  try {
    await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error('it did not fail');
}
