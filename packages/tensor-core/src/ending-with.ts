// What is begun before a body has to end behind it, also where the body is asynchronous or fails.

/** Runs `body`, and `end` once it has returned, thrown or settled. Returns what the body does. */
export function endingWith<T>(end: () => void, body: () => T): T {
  let result: T;
  try {
    result = body();
  } catch (error) {
    end();
    throw error;
  }
  if (result instanceof Promise) {
    return result.finally(end) as T;
  }
  end();
  return result;
}
