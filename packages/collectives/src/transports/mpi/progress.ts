// Makes MPI progress: it has no events, so it has to be polled. Requests lie in one table that
// MPI_Testsome goes through in each turn of the event loop, often while something is awaited and
// seldom while nothing is. Nothing here blocks.

import type { HandleArray, MpiLibrary } from './mpi-library.js';

export interface ProgressOptions {
  /** Whether ranks of this host share its cores; then waiting leaves them to the others at once. */
  readonly isOversubscribed: boolean;
  /** Called when MPI, or what followed a completed request, failed. */
  onError(error: unknown): void;
}

/** A request to MPI: how it begins, and what happens at its end. */
export interface Request {
  /** Makes the MPI call; `place` is where MPI puts the request. */
  begin(place: HandleArray): void;
  done(): void;
  /** Whatever keeps alive the memory that MPI reads or writes until the end. */
  readonly keep: unknown;
}

/**
 * The time to spin: it finds a small message in microseconds, and longer waits are worth fewer
 * polls.
 */
const SPIN_MS = 2;

/** The time between polls of a longer wait, while something still arrives now and then. */
const NAP_MS = 0.05;
const NAPPING_MS = 50;

/**
 * The time between polls in a wait that is long already, and while nothing is awaited but a peer's
 * failure.
 */
const SLOW_POLL_MS = 1;
const IDLE_POLL_MS = 10;

/** The longest that timers can wait: 24 days. */
const NEVER_MS = 2 ** 31 - 1;

const INITIAL_REQUESTS = 64;

export class Progress {
  readonly #mpi: MpiLibrary;
  readonly #options: ProgressOptions;
  readonly #nap = new Int32Array(new SharedArrayBuffer(4));
  #table: HandleArray;
  /** The part of the table that has ever been used, which is what is tested. */
  #tested: HandleArray;
  #indices: Int32Array;
  #requests: (Request | undefined)[] = [];
  readonly #free: number[] = [];
  #numAwaited = 0;
  #isBusy = false;
  #isStopped = false;
  #isInTurn = false;
  /** Whether the next poll comes in the event loop's next turn. */
  #isNext = false;
  /**
   * The time when something last ended or was begun, and how long before the end of the last turn
   * that was.
   */
  #quietSinceMs = 0;
  #waitMs = 0;
  #cancelTurn: (() => void) | undefined;

  constructor(mpi: MpiLibrary, options: ProgressOptions) {
    this.#mpi = mpi;
    this.#options = options;
    this.#table = mpi.handles(INITIAL_REQUESTS);
    this.#tested = this.#table.subarray(0, 0);
    this.#indices = new Int32Array(INITIAL_REQUESTS);
    this.#schedule();
  }

  /** Begins a request that is awaited. `done` is called in a later turn. */
  start(request: Request): void {
    this.#numAwaited++;
    this.#begin({
      ...request,
      done: () => {
        this.#numAwaited--;
        request.done();
      },
    });
    this.#wake();
  }

  /** Begins a request that may never end, such as a receive for whatever may come. */
  listen(request: Request): number {
    return this.#begin(request);
  }

  /** Begins a single request as `start` does; resolves when it has ended. */
  run(begin: (place: HandleArray) => void, keep: unknown): Promise<void> {
    return new Promise((done) => this.start({ begin, done, keep }));
  }

  /** Ends a request of `listen`, whose `done` isn't called. */
  cancel(place: number): void {
    this.#requests[place] = { ...this.#requests[place]!, done: () => {} };
    this.#mpi.cancel(this.#table.subarray(place, place + 1));
  }

  /** Sets whether messages are awaited whose requests peers begin. */
  set isBusy(isBusy: boolean) {
    this.#isBusy = isBusy;
    if (isBusy) {
      this.#wake();
    }
  }

  /**
   * Stops polling, so that the process may end. What has begun stays begun inside MPI, which may
   * move it on for another group, into memory that must therefore not be used for anything else: a
   * timer that never fires keeps that memory alive.
   */
  stop(): void {
    this.#isStopped = true;
    this.#cancelTurn?.();
    const requests = this.#requests.filter((request) => request !== undefined);
    if (requests.length > 0) {
      setTimeout(() => requests, NEVER_MS).unref();
    }
  }

  #begin(request: Request): number {
    const place = this.#free.pop() ?? this.#addPlace();
    this.#requests[place] = request;
    request.begin(this.#table.subarray(place, place + 1));
    return place;
  }

  #addPlace(): number {
    const place = this.#tested.length;
    if (place === this.#table.length) {
      const larger = this.#mpi.handles(2 * place);
      larger.set(this.#table as never);
      this.#table = larger;
      this.#indices = new Int32Array(2 * place);
    }
    this.#tested = this.#table.subarray(0, place + 1);
    return place;
  }

  #turn(): void {
    this.#cancelTurn = undefined;
    if (this.#waitMs > (this.#options.isOversubscribed ? 0 : SPIN_MS)) {
      Atomics.wait(this.#nap, 0, 0, NAP_MS);
    }
    this.#isInTurn = true;
    let count = 0;
    try {
      const indices = this.#indices;
      count = this.#mpi.testSome(this.#tested, indices);
      if (count > 0) {
        const ended = Array.from(indices.subarray(0, count), (place) => this.#take(place));
        for (const request of ended) {
          request.done();
        }
      }
    } catch (error) {
      this.#options.onError(error);
    }
    this.#isInTurn = false;
    const now = performance.now();
    this.#quietSinceMs = count > 0 ? now : this.#quietSinceMs;
    this.#waitMs = now - this.#quietSinceMs;
    this.#schedule();
  }

  #take(place: number): Request {
    const request = this.#requests[place]!;
    this.#requests[place] = undefined;
    this.#free.push(place);
    return request;
  }

  /** Makes the next turn come at once, because something is awaited from now on. */
  #wake(): void {
    this.#quietSinceMs = performance.now();
    this.#waitMs = 0;
    if (!this.#isInTurn && !this.#isNext) {
      this.#schedule();
    }
  }

  #schedule(): void {
    this.#cancelTurn?.();
    this.#cancelTurn = undefined;
    this.#isNext = false;
    if (this.#isStopped) {
      return;
    }
    if (this.#numAwaited === 0 && !this.#isBusy) {
      this.#turnAfter(IDLE_POLL_MS);
    } else if (this.#waitMs > NAPPING_MS) {
      this.#turnAfter(SLOW_POLL_MS);
    } else {
      this.#isNext = true;
      const immediate = setImmediate(() => this.#turn());
      this.#cancelTurn = () => clearImmediate(immediate);
    }
  }

  #turnAfter(ms: number): void {
    const timer = setTimeout(() => this.#turn(), ms);
    this.#cancelTurn = () => clearTimeout(timer);
  }
}
