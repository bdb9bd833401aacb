// Time as endpoints and joining ranks see it. A simulator replaces it by a clock whose time is
// virtual.

import { yieldToEventLoop } from '@shardweave/dtypes';

/**
 * Time and timers as an endpoint uses them. `GroupOptions.clock` replaces the system's, so that a
 * simulator can run on virtual time.
 */
export interface Clock {
  /** Milliseconds since an arbitrary moment; never goes back. */
  now(): number;
  /** Calls `callback` once, after `ms` milliseconds. The returned function cancels that. */
  setTimer(ms: number, callback: () => void): () => void;
  /** Resolves when other work of the event loop has had its turn. */
  turn(): Promise<void>;
}

/**
 * The clock of the system: `performance.now`, `setTimeout` and the turns of the real event loop.
 */
export const systemClock: Clock = {
  now: () => performance.now(),
  setTimer: (ms, callback) => {
    const timer = setTimeout(callback, ms);
    return () => clearTimeout(timer);
  },
  turn: yieldToEventLoop,
};

/**
 * Calls `callback` every `ms` milliseconds, which keeps no process alive. The returned function
 * ends that.
 */
export function every(clock: Clock, ms: number, callback: () => void): () => void {
  if (clock === systemClock) {
    const timer = setInterval(callback, ms);
    timer.unref?.(); // a page has no such thing
    return () => clearInterval(timer);
  }
  let cancel = () => {};
  const arm = () => {
    cancel = clock.setTimer(ms, () => {
      arm();
      callback();
    });
  };
  arm();
  return () => cancel();
}
