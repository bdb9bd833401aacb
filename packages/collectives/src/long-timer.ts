// Timers of any length: setTimeout takes what it can't count for a millisecond.

/** Milliseconds; of setTimeout. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Calls `callback` once, after `ms`, which may be Infinity: never. What it returns cancels that. */
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
