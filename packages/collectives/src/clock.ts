// Time as an endpoint sees it. A simulator replaces it by a clock whose time is virtual.

import { yieldToEventLoop } from '@shardweave/dtypes';

export interface Clock {
  /** Milliseconds since an arbitrary moment; never goes back. */
  now(): number;
  /** Calls `callback` once, after `ms` milliseconds. The returned function cancels that. */
  setTimer(ms: number, callback: () => void): () => void;
  /** Resolves when other work of the event loop has had its turn. */
  turn(): Promise<void>;
}

export const systemClock: Clock = {
  now: () => performance.now(),
  setTimer: (ms, callback) => {
    const timer = setTimeout(callback, ms);
    return () => clearTimeout(timer);
  },
  turn: yieldToEventLoop,
};
