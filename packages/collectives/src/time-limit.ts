// Limits on the time that others may take. They may be of any length: setTimeout itself waits only
// a millisecond when it is given more than it can count.
//
// Note [a held event loop]
// Where the event loop was held (by an import, a compilation, SIGSTOP or a busy machine), Node runs
// the timers that are due before it reads from any socket. So an answer that came in time would
// count as missing. After a limit the loop gets one more turn, in which it reads what waits.

import { yieldToEventLoop } from '@shardweave/dtypes';

/** The most milliseconds that setTimeout can count. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * Calls `callback` once, a turn of the event loop after `ms` milliseconds, or never where `ms` is
 * Infinity. The returned function cancels that. See Note [a held event loop].
 */
export function setLimit(ms: number, callback: () => void): () => void {
  const endMs = performance.now() + ms;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isCancelled = false;
  const end = () => {
    void yieldToEventLoop().then(() => {
      if (!isCancelled) {
        callback();
      }
    });
  };
  const arm = () => {
    const leftMs = endMs - performance.now();
    timer =
      leftMs > LONGEST_TIMER_MS
        ? setTimeout(arm, LONGEST_TIMER_MS)
        : setTimeout(end, Math.max(0, leftMs));
  };
  arm();
  return () => {
    isCancelled = true;
    clearTimeout(timer);
  };
}

/** Settles as `promise` does, or with what `late` gives or throws where that takes longer. */
export async function within<T>(limitMs: number, promise: Promise<T>, late: () => T): Promise<T> {
  let stopTimer = () => {};
  const limit = new Promise<void>((resolve) => {
    stopTimer = setLimit(limitMs, resolve);
  });
  try {
    return await Promise.race([promise, limit.then(late)]);
  } finally {
    stopTimer();
  }
}
