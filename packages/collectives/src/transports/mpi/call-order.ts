// MPI requires the collectives of one communicator in one order on all ranks, but promises settle
// in any order. A CallOrder runs work in the order in which `enter` was called, which is that of
// the program.

/**
 * The number of parts of one operation that are under way at once: one moves while the next is
 * announced.
 */
const WINDOW = 2;

export interface OrderedWork {
  readonly numParts: number;
  /** Resolves when the part may begin; parts begin in order. Default: at once. */
  isReady?(part: number): Promise<unknown> | undefined;
  /** Begins the part within the call; resolves when it has ended. */
  begin(part: number): Promise<unknown>;
}

export class CallOrder {
  #last: Promise<unknown> = Promise.resolve();

  /**
   * Takes the next place in the order. When the entries before have begun all their parts, and
   * `work` has resolved, its parts begin. Resolves when they have ended.
   */
  enter(work: Promise<OrderedWork>): Promise<void> {
    const begun = Promise.all([work, this.#last]).then(([ready]) => beginAll(ready));
    this.#last = begun;
    return begun.then(({ end }) => end);
  }
}

async function beginAll({
  numParts,
  isReady,
  begin,
}: OrderedWork): Promise<{ end: Promise<void> }> {
  const running: Promise<unknown>[] = [];
  for (let part = 0; part < numParts; part++) {
    await Promise.all([isReady?.(part), running[part - WINDOW]]);
    running.push(begin(part));
  }
  // The promise is in an object, because it would be awaited otherwise: the next entry goes on as
  // soon as all parts of this one have begun.
  return { end: Promise.all(running).then(() => {}) };
}
