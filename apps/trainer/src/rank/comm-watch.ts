// Measures how long a step's collectives ran, and how much of that was exposed: the time in which
// the rank's device had nothing to do beside them. Collectives report when they ran. Whether the
// device works is asked of it with a fence, wherever the host may have given it more work.
//
// Note [what starts work]
// A step's host code goes on only where a phase begins, where a collective ends, or where the
// device has given something back. After each of these the host gives the device all the work that
// it has, without waiting, so one look at the number of kernels then shows whether the device
// works. A fence that resolves is the third case, and the look after it begins the next stretch of
// work.

import type { CollectiveTrace } from '@shardweave/collectives';
import type { Backend } from '@shardweave/tensor-core';

/** The milliseconds of one step. */
export interface CommTimes {
  /** The time in which at least one collective of this rank was under way. */
  readonly collectiveMs: number;
  /** The part of that in which its device had nothing to do. */
  readonly exposedMs: number;
}

export type Span = readonly [startMs: number, endMs: number];

export class CommWatch {
  readonly #backend: Pick<Backend, 'dispatches' | 'sync'>;
  readonly #now: () => number;
  #calls: Span[] = [];
  #busy: Span[] = [];
  /** The number of kernels that the device had been given at the last look. */
  #seen: number;
  #isLooking = false;
  /** The time since when the device works; undefined where it doesn't, as far as is known. */
  #busySince: number | undefined;

  constructor(
    backend: Pick<Backend, 'dispatches' | 'sync'>,
    now: () => number = () => performance.now(),
  ) {
    this.#backend = backend;
    this.#now = now;
    this.#seen = backend.dispatches;
  }

  /** Notes that a collective has ended. */
  readonly onCall = ({ startMs, endMs }: Pick<CollectiveTrace, 'startMs' | 'endMs'>): void => {
    this.#calls.push([startMs, endMs]);
    this.look();
  };

  /** To be called where the host may have given the device work. */
  look(): void {
    if (this.#isLooking || this.#busySince !== undefined) {
      return;
    }
    this.#isLooking = true;
    const fromMs = this.#now();
    setImmediate(() => {
      this.#isLooking = false;
      if (this.#backend.dispatches !== this.#seen) {
        this.#busySince = fromMs;
        void this.#followWork();
      }
    });
  }

  /** Forgets what was before, because a step begins. */
  begin(): void {
    this.#calls = [];
    this.#busy = [];
    if (this.#busySince !== undefined) {
      this.#busySince = this.#now();
    }
    this.look();
  }

  /** The times since `begin`. */
  take(): CommTimes {
    const open: Span[] =
      this.#busySince === undefined ? [] : [[this.#busySince, Number.POSITIVE_INFINITY]];
    return commTimes(this.#calls, [...this.#busy, ...open]);
  }

  async #followWork(): Promise<void> {
    try {
      while (this.#backend.dispatches !== this.#seen) {
        this.#seen = this.#backend.dispatches;
        await this.#backend.sync();
      }
    } catch {
      // The device has failed; whatever computes on it gets the error.
    }
    if (this.#busySince !== undefined) {
      this.#busy.push([this.#busySince, this.#now()]);
      this.#busySince = undefined;
      this.look();
    }
  }
}

/**
 * The times of calls and of the device's work. Both lists may be in any order, and their spans may
 * overlap.
 */
export function commTimes(calls: readonly Span[], busy: readonly Span[]): CommTimes {
  const union = joined(calls);
  const work = joined(busy);
  let collectiveMs = 0;
  let exposedMs = 0;
  for (const [start, end] of union) {
    collectiveMs += end - start;
    exposedMs += end - start;
    for (const [from, to] of work) {
      exposedMs -= Math.max(0, Math.min(end, to) - Math.max(start, from));
    }
  }
  return { collectiveMs, exposedMs };
}

/** The same times as spans that don't touch, in order. */
function joined(spans: readonly Span[]): Span[] {
  const out: [number, number][] = [];
  for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
    const last = out.at(-1);
    if (last !== undefined && start <= last[1]) {
      last[1] = Math.max(last[1], end);
    } else {
      out.push([start, end]);
    }
  }
  return out;
}
