// Moves MPI on: it has no events, so it has to be asked again and again. Requests lie in one table
// that MPI_Testsome goes through in each turn of the event loop, often while something is awaited
// and seldom while nothing is. Nothing here blocks.

import type { HandleArray, MpiLibrary } from './mpi-library.js';

export interface ProgressOptions {
  /** Ranks of this host share its cores: then waiting leaves them to the others at once. */
  readonly isOversubscribed: boolean;
  /** MPI or what followed a completed request failed. */
  onError(error: unknown): void;
}

/** How a request is begun, and what it leads to. */
export interface Request {
  /** Makes the MPI call; `place` is where MPI puts the request. */
  begin(place: HandleArray): void;
  done(): void;
  /** Whatever holds what MPI reads or writes until then. */
  readonly keep: unknown;
}

/** Spinning finds a small message in microseconds; longer waits are worth fewer of them. */
const SPIN_MS = 2;

/** Between the asks of a longer wait, while something still arrives now and then. */
const NAP_MS = 0.05;
const NAPPING_MS = 50;

/** For waits that are long already, and while nothing is awaited but a peer's failure. */
const SLOW_POLL_MS = 1;
const IDLE_POLL_MS = 10;

/** The longest that timers take: 24 days. */
const NEVER_MS = 2 ** 31 - 1;

const INITIAL_REQUESTS = 64;

export class Progress {
  readonly #mpi: MpiLibrary;
  readonly #options: ProgressOptions;
  readonly #nap = new Int32Array(new SharedArrayBuffer(4));
  #table: HandleArray;
  /** The part of the table that has ever been used: what is tested. */
  #tested: HandleArray;
  #indices: Int32Array;
  #requests: (Request | undefined)[] = [];
  readonly #free: number[] = [];
  #numAwaited = 0;
  #isBusy = false;
  #isStopped = false;
  #isInTurn = false;
  /** The next turn is the event loop's next. */
  #isNext = false;
  /** When something last ended or was begun, and how long ago that was at the end of a turn. */
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

  /** Begins a request that somebody awaits. `done` is called in a later turn. */
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

  /** Begins a request that may never end, such as a receive of what may come. */
  listen(request: Request): number {
    return this.#begin(request);
  }

  /** The same as `start`, for a single request. */
  run(begin: (place: HandleArray) => void, keep: unknown): Promise<void> {
    return new Promise((done) => this.start({ begin, done, keep }));
  }

  /** Ends what `listen` began; its `done` isn't called. */
  cancel(place: number): void {
    this.#requests[place] = { ...this.#requests[place]!, done: () => {} };
    this.#mpi.cancel(this.#table.subarray(place, place + 1));
  }

  /** Whether messages are awaited whose requests peers begin. */
  set isBusy(isBusy: boolean) {
    this.#isBusy = isBusy;
    if (isBusy) {
      this.#wake();
    }
  }

  /**
   * Asks no more: the process may end. What has begun stays begun inside MPI, which may move it on
   * for another group, into memory that must therefore not be given to anybody else: a timer that
   * never comes keeps it.
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

  /** Something is awaited from now on: the next turn comes at once. */
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
