// Timers of any length: setTimeout itself waits only a millisecond when it is given more than it
// can count.

/** The most milliseconds that setTimeout can count. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * Calls `callback` once, after `ms` milliseconds, or never where `ms` is Infinity. The returned
 * function cancels that.
 */
export function setLongTimer(ms: number, callback: () => void): () => void {
  const endMs = performance.now() + ms;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const arm = () => {
    const leftMs = endMs - performance.now();
    timer =
      leftMs > LONGEST_TIMER_MS
        ? setTimeout(arm, LONGEST_TIMER_MS)
        : setTimeout(callback, Math.max(0, leftMs));
  };
  arm();
  return () => clearTimeout(timer);
}
