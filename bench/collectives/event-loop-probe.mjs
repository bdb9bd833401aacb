// The longest that an event loop was held: gaps of a chain of setImmediate, of which the time that
// the thread waited for a core (Linux counts it) is taken off, for that is the scheduler's.
import { closeSync, existsSync, openSync, readSync } from 'node:fs';

const SCHEDSTAT = '/proc/thread-self/schedstat';

/** @returns {{ stop(): { heldMs: number, gapMs: number, isExact: boolean } }} */
export function watchEventLoop() {
  const isExact = existsSync(SCHEDSTAT);
  const file = isExact ? openSync(SCHEDSTAT) : undefined;
  const bytes = Buffer.alloc(64);
  // Fields: nanoseconds on a core, nanoseconds of waiting for one, time slices.
  const waitedMs = () => {
    if (file === undefined) return 0;
    const length = readSync(file, bytes, 0, bytes.length, 0);
    return Number(bytes.toString('latin1', 0, length).split(' ')[1]) / 1e6;
  };
  let lastMs = performance.now();
  let lastWaitedMs = waitedMs();
  let heldMs = 0;
  let gapMs = 0;
  const look = () => {
    const waited = waitedMs();
    const now = performance.now();
    gapMs = Math.max(gapMs, now - lastMs);
    heldMs = Math.max(heldMs, now - lastMs - (waited - lastWaitedMs));
    lastMs = now;
    lastWaitedMs = waited;
    next = setImmediate(look);
  };
  let next = setImmediate(look);
  return {
    stop: () => {
      clearImmediate(next);
      if (file !== undefined) closeSync(file);
      return { heldMs, gapMs, isExact };
    },
  };
}
