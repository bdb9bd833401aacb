// Limits on the time that others may take. They may be of any length: setTimeout itself waits only
// a millisecond when it is given more than it can count.
//
// Note [a held event loop]
// Where the event loop was held (by an import, a compilation, SIGSTOP or a busy machine), Node runs
// the timers that are due before it reads from any socket. So an answer that came in time would
// count as missing. After a limit the loop gets one more turn, in which it reads what waits.

import { type Clock, systemClock } from './clock.js';

/** The most milliseconds that setTimeout can count. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * Calls `callback` once, a turn of the event loop after `ms` milliseconds, or never where `ms` is
 * Infinity. The returned function cancels that. See Note [a held event loop].
 */
export function setLimit(ms: number, callback: () => void, clock: Clock = systemClock): () => void {
  const endMs = clock.now() + ms;
  let stopTimer = () => {};
  let isCancelled = false;
  const end = () => {
    void clock.turn().then(() => {
      if (!isCancelled) {
        callback();
      }
    });
  };
  const arm = () => {
    const leftMs = endMs - clock.now();
    stopTimer =
      leftMs > LONGEST_TIMER_MS
        ? clock.setTimer(LONGEST_TIMER_MS, arm)
        : clock.setTimer(Math.max(0, leftMs), end);
  };
  arm();
  return () => {
    isCancelled = true;
    stopTimer();
  };
}

/** Settles as `promise` does, or with what `late` gives or throws where that takes longer. */
export async function within<T>(
  limitMs: number,
  promise: Promise<T>,
  late: () => T,
  clock: Clock = systemClock,
): Promise<T> {
  let stopTimer = () => {};
  const limit = new Promise<void>((resolve) => {
    stopTimer = setLimit(limitMs, resolve, clock);
  });
  try {
    return await Promise.race([promise, limit.then(late)]);
  } finally {
    stopTimer();
  }
}
