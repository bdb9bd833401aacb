// The one place where a device is waited for. All reads and syncs queue here and resolve in order.
//
// Note [paced waits]: Dawn's binding for Node spins the event loop while a GPU promise is pending,
// and on a software driver that core is the device. So a wait maps for a moment, and if the device
// isn't done cancels the mapping (unmap rejects it), sleeps without any GPU promise for a share of
// the time waited so far, and tries again. Small reads resolve in the first moment; long ones are
// late by at most a twelfth. A moment is a time and a number of turns of the loop, since finished
// work is told of some turns later, however long each one takes. On hardware and with other
// bindings, whose loops sleep, mapping is waited for plainly.

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import type { Allocations } from './allocations.js';
import type { Fault } from './fault.js';
import { MAP_READ } from './staging.js';

/**
 * The name of a property that devices have whose binding spins the event loop while a promise is
 * pending. A registered symbol is the same in every copy of this package.
 */
export const SPINS = Symbol.for('@shardweave/tensor-core: spins while a GPU promise is pending');

/** A wait for the bytes that submit `serial` copies to `staging`. */
export interface WaitJob {
  readonly staging: GPUBuffer;
  readonly byteLength: number;
  readonly serial: number;
  /** Whether a failed allocation is not reported by this wait, but left for the next one. */
  readonly isQuiet?: boolean;
  /** Gets the mapped bytes, which it must copy, because the buffer is unmapped afterwards. */
  done(bytes: Uint8Array): void;
  /** Called when the buffer is unmapped and free again, but not after a failure. */
  settled(): void;
  failed(error: Error): void;
}

/** The first wait, in which most reads finish: on lavapipe 4 kB take 0.08 ms, 1 MB 0.14 ms. */
const FIRST_SPIN_MS = 0.5;
const LATER_SPIN_MS = 0.25;
/** The least turns of the loop in a look. Dawn tells of finished work after two or three. */
const LEAST_TURNS = 4;
/**
 * Looks whose number is a power of two last this share of the time waited so far. So they double
 * until they suffice for a binding that tells late, as Deno does by 15 ms, and take no more of a
 * core than this.
 */
const LONG_LOOK_SHARE = 1 / 16;
const SLEEP_SHARE = 1 / 12;
const MAX_SLEEP_MS = 8;

export class Waiter {
  readonly #fault: Fault;
  readonly #allocations: Allocations;
  readonly #isPaced: boolean;
  readonly #onComplete: (serial: number) => void;
  #jobs: WaitJob[] = [];
  #running: Promise<void> | undefined;

  constructor(
    fault: Fault,
    allocations: Allocations,
    options: { isPaced: boolean; onComplete: (serial: number) => void },
  ) {
    this.#fault = fault;
    this.#allocations = allocations;
    this.#isPaced = options.isPaced;
    this.#onComplete = options.onComplete;
  }

  add(job: WaitJob): void {
    this.#jobs.push(job);
    this.#running ??= this.#run();
  }

  /** Resolves when no waits are left. */
  async idle(): Promise<void> {
    while (this.#running !== undefined) {
      await this.#running;
    }
  }

  async #run(): Promise<void> {
    while (this.#jobs.length > 0) {
      const serial = this.#jobs[0]!.serial;
      const batch = this.#jobs.filter((job) => job.serial === serial);
      // Mapping a buffer whose allocation failed is an error, so checks under way are awaited
      // first.
      if (this.#fault.hasChecks) {
        await this.#fault.settled();
      }
      const isQuiet = batch.every((job) => job.isQuiet === true);
      const error =
        this.#fault.error ??
        this.#allocations.failureAt(serial, { isQuiet }) ??
        (await this.#mapAll(batch));
      this.#jobs = this.#jobs.filter((job) => !batch.includes(job));
      if (error === undefined) {
        this.#onComplete(serial);
      }
      for (const job of batch) {
        finish(job, error);
      }
    }
    this.#running = undefined; // in the turn that saw no jobs, so that none is added unseen
  }

  async #mapAll(batch: readonly WaitJob[]): Promise<Error | undefined> {
    try {
      if (this.#isPaced) {
        await mapPaced(batch[0]!, () => this.#fault.error !== undefined);
      } else {
        await map(batch[0]!);
      }
      await Promise.all(batch.slice(1).map(map));
      await this.#fault.settled();
    } catch (error) {
      await nextTurn(); // the loss that caused it is reported in a turn of its own
      return this.#fault.error ?? (error instanceof Error ? error : new Error(String(error)));
    }
    return this.#fault.error;
  }
}

function map(job: WaitJob): Promise<undefined> {
  return job.staging.mapAsync(MAP_READ, 0, job.byteLength);
}

/** See Note [paced waits]. */
async function mapPaced(job: WaitJob, hasFailed: () => boolean): Promise<void> {
  const start = performance.now();
  for (let look = 0; ; look++) {
    let settled: 'pending' | 'mapped' | 'rejected' = 'pending';
    let reason: unknown;
    map(job).then(
      () => {
        settled = 'mapped';
      },
      (error: unknown) => {
        settled = 'rejected';
        reason = error;
      },
    );
    const isPending = () => settled === 'pending';
    const until = performance.now() + lookMs(look, performance.now() - start);
    for (let turn = 0; isPending(); turn++) {
      if (turn >= LEAST_TURNS && performance.now() >= until) {
        break;
      }
      await nextTurn();
    }
    if (isPending()) {
      job.staging.unmap();
      while (isPending()) {
        await nextTurn();
      }
      if (hasFailed()) {
        throw reason;
      }
    } else if ((settled as string) === 'mapped') {
      return;
    } else {
      throw reason;
    }
    const waited = performance.now() - start;
    const sleepMs = Math.min(MAX_SLEEP_MS, Math.max(1, waited * SLEEP_SHARE));
    await new Promise((resolve) => setTimeout(resolve, sleepMs));
  }
}

function lookMs(look: number, waitedMs: number): number {
  if (look === 0) {
    return FIRST_SPIN_MS;
  }
  const isLong = look === pow64(2, floorLog2(look));
  return isLong ? Math.max(LATER_SPIN_MS, waitedMs * LONG_LOOK_SHARE) : LATER_SPIN_MS;
}

function finish(job: WaitJob, error: Error | undefined): void {
  if (error !== undefined) {
    job.failed(error);
    return;
  }
  try {
    job.done(new Uint8Array(job.staging.getMappedRange(0, job.byteLength)));
    job.staging.unmap();
    job.settled();
  } catch (reason) {
    job.failed(reason instanceof Error ? reason : new Error(String(reason)));
  }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => {
    if (typeof setImmediate === 'function') {
      setImmediate(resolve);
    } else {
      setTimeout(resolve, 0);
    }
  });
}
