// How long a step's collectives ran, and how much of that was exposed: time in which the rank's
// device had nothing to do beside them. Collectives say themselves when they ran; that the device
// works is asked of it with a fence wherever the host may have given it more.
//
// Note [what starts work]: a step's host code goes on only where a phase begins, a collective ends
// or the device has given something back. Behind each of these it gives the device what it has,
// without a wait, so one look at the number of kernels then says whether it works. A fence that
// resolves is the third of them, and the look behind it begins the next stretch.

import type { CollectiveTrace } from '@shardweave/collectives';
import type { Backend } from '@shardweave/tensor-core';

/** Milliseconds of one step. */
export interface CommTimes {
  /** At least one collective of this rank was under way. */
  readonly collectiveMs: number;
  /** And its device had nothing to do. */
  readonly exposedMs: number;
}

export type Span = readonly [startMs: number, endMs: number];

export class CommWatch {
  readonly #backend: Pick<Backend, 'dispatches' | 'sync'>;
  readonly #now: () => number;
  #calls: Span[] = [];
  #busy: Span[] = [];
  /** Kernels that the device had been given at the last look. */
  #seen: number;
  #isLooking = false;
  /** Since when the device works; undefined where it doesn't, as far as is known. */
  #busySince: number | undefined;

  constructor(
    backend: Pick<Backend, 'dispatches' | 'sync'>,
    now: () => number = () => performance.now(),
  ) {
    this.#backend = backend;
    this.#now = now;
    this.#seen = backend.dispatches;
  }

  /** A collective has ended. */
  readonly onCall = ({ startMs, endMs }: Pick<CollectiveTrace, 'startMs' | 'endMs'>): void => {
    this.#calls.push([startMs, endMs]);
    this.look();
  };

  /** Call where the host may give the device work from now on. */
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

  /** Forgets what was before: a step begins. */
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
      // The device has failed, which whoever computes on it hears of.
    }
    if (this.#busySince !== undefined) {
      this.#busy.push([this.#busySince, this.#now()]);
      this.#busySince = undefined;
      this.look();
    }
  }
}

/** Both lists in any order; spans of each may overlap. */
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
