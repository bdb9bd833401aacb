// MPI wants the collectives of one communicator in one order on all ranks, and promises settle in
// any. A CallOrder runs work in the order in which `enter` was called, which is that of the
// program.

/** Parts of one operation that are under way at once: one moves while the next is announced. */
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
   * Takes the next place. When those before have begun all their parts, and `work` has come, its
   * parts begin. Resolves when they have ended.
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
  // In an object, for a promise would be awaited: the next one goes on as soon as all have begun.
  return { end: Promise.all(running).then(() => {}) };
}
