// Measures the longest time for which an event loop was held up. The probe is a chain of
// setImmediate, and what counts is the gap between two turns less the time for which the thread
// waited for a core. Linux counts that time; it is due to the scheduler and not to the program.
import { closeSync, existsSync, openSync, readSync } from 'node:fs';

const SCHEDSTAT = '/proc/thread-self/schedstat';

/**
 * Watches the event loop until `stop`. All three results are maxima over the gaps between two
 * turns: `gapMs` is the gap itself, `heldMs` is the gap less the time of waiting for a core, and
 * `coreMs` is the time on a core. A busy machine does not change `coreMs`, but it leaves out
 * waiting inside a callback.
 * @returns {{ stop(): { heldMs: number, coreMs: number, gapMs: number, isExact: boolean } }}
 */
export function watchEventLoop() {
  const isExact = existsSync(SCHEDSTAT);
  const file = isExact ? openSync(SCHEDSTAT) : undefined;
  const bytes = Buffer.alloc(64);
  // The file has three fields: nanoseconds on a core, nanoseconds of waiting for one, time slices.
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
