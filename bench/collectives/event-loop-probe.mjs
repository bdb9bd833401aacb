// The longest that an event loop was held: gaps of a chain of setImmediate, of which the time that
// the thread waited for a core (Linux counts it) is taken off, for that is the scheduler's.
import { closeSync, existsSync, openSync, readSync } from 'node:fs';

const SCHEDSTAT = '/proc/thread-self/schedstat';

/**
 * `heldMs`: as above; `coreMs`: the longest that the thread was on a core between two turns, which
 * a busy machine doesn't change, but which leaves out waiting inside a callback; `gapMs`: all of
 * it.
 * @returns {{ stop(): { heldMs: number, coreMs: number, gapMs: number, isExact: boolean } }}
 */
export function watchEventLoop() {
  const isExact = existsSync(SCHEDSTAT);
  const file = isExact ? openSync(SCHEDSTAT) : undefined;
  const bytes = Buffer.alloc(64);
  // Fields: nanoseconds on a core, nanoseconds of waiting for one, time slices.
  const schedule = () => {
    if (file === undefined) {
      return { coreMs: 0, waitMs: 0 };
    }
    const length = readSync(file, bytes, 0, bytes.length, 0);
    const [core, wait] = bytes.toString('latin1', 0, length).split(' ');
    return { coreMs: Number(core) / 1e6, waitMs: Number(wait) / 1e6 };
  };
  let last = { nowMs: performance.now(), ...schedule() };
  const most = { heldMs: 0, coreMs: 0, gapMs: 0 };
  const look = () => {
    const now = { ...schedule(), nowMs: performance.now() };
    const gapMs = now.nowMs - last.nowMs;
    most.gapMs = Math.max(most.gapMs, gapMs);
    most.heldMs = Math.max(most.heldMs, gapMs - (now.waitMs - last.waitMs));
    most.coreMs = Math.max(most.coreMs, now.coreMs - last.coreMs);
    last = now;
    next = setImmediate(look);
  };
  let next = setImmediate(look);
  return {
    stop: () => {
      clearImmediate(next);
      if (file !== undefined) {
        closeSync(file);
      }
      return { ...most, isExact };
    },
  };
}
