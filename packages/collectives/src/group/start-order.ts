// Starts collectives in the order in which they were enqueued, though each waits for its input
// first. On every rank that is program order, so the sequences agree whatever arrives first.

/**
 * The options of `StartOrder.enqueue`: what takes the place of a call that fails before it starts,
 * and whether later calls wait for its end.
 */
export interface StartOptions {
  /**
   * Called in place of a call that failed before it was made: because of its input, or because
   * `begin` threw before it called the group. For a serial call it is called wherever that failed.
   * So the sequence has as many calls on every rank. Later calls wait for it; the caller of the
   * failed one does not. Default: nothing takes its place.
   */
  readonly failed?: (error: unknown) => Promise<void>;
  /**
   * Later calls wait for the end of this one, too, because it starts further collectives on its
   * way.
   */
  readonly isSerial?: boolean;
}

/**
 * The order in which collectives of one group start. Each group has one, which all its users share.
 */
export class StartOrder {
  readonly #numCalls: () => number;
  #lastStart: Promise<unknown> = Promise.resolve();
  #numUsers = 0;

  /** @param numCalls tells how many collectives the group has been asked for */
  constructor(numCalls: () => number) {
    this.#numCalls = numCalls;
  }

  /**
   * The number of a user of the group; the same on all ranks, where users ask in the same order.
   */
  nextUser(): number {
    return this.#numUsers++;
  }

  /** Calls `begin` with the result of `ready`, after every earlier `begin` was called. */
  enqueue<Input, Output>(
    ready: Promise<Input>,
    begin: (input: Input) => Promise<Output>,
    { failed, isSerial = false }: StartOptions = {},
  ): Promise<Output> {
    // The wait for earlier calls may outlast its failure, which must not count as unhandled.
    ready.catch(() => undefined);
    const started = this.#lastStart
      .then(() => ready)
      .then(
        (input) => {
          const before = this.#numCalls();
          const ended = called(begin, input);
          return { ended, isOpen: isSerial || this.#numCalls() === before };
        },
        (error: unknown) => ({ ended: Promise.reject<Output>(error), isOpen: true }),
      );
    // The next one may start once this call is made, or once `failed` has taken its place.
    this.#lastStart = started
      .then(({ ended, isOpen }) =>
        isOpen ? ended.catch((error: unknown) => failed?.(error)) : undefined,
      )
      .catch(() => undefined);
    const ended = started.then((start) => start.ended);
    // Whoever awaits it sees the failure; until then it must not count as unhandled.
    ended.catch(() => undefined);
    return ended;
  }
}

async function called<Input, Output>(
  begin: (input: Input) => Promise<Output>,
  input: Input,
): Promise<Output> {
  return begin(input);
}
