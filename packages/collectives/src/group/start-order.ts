// Starts collectives in the order of the calls, though each waits for its input first. On every
// rank the calls come in program order, so the sequences agree whatever arrives when.

export interface StartOptions {
  /**
   * Called in the place of a call that failed before it was made: of its input, or of `begin`
   * before that called the group; of a serial one wherever it failed. So the sequence has as many
   * calls on every rank. Later calls wait for it, whoever made the failed one does not. Default:
   * nothing takes its place.
   */
  readonly failed?: (error: unknown) => Promise<void>;
  /** Later calls wait for the end of this one, too: it starts further collectives on its way. */
  readonly isSerial?: boolean;
}

/** The order in which collectives of one group start. Each group has one, for all that use it. */
export class StartOrder {
  readonly #numCalls: () => number;
  #lastStart: Promise<unknown> = Promise.resolve();
  #numUsers = 0;

  /** @param numCalls how many collectives the group has been asked for */
  constructor(numCalls: () => number) {
    this.#numCalls = numCalls;
  }

  /** The number of a user of the group: the same on all ranks that ask in one order. */
  nextUser(): number {
    return this.#numUsers++;
  }

  /** Calls `begin` with what `ready` gives, after every earlier begin was called. */
  enqueue<Input, Output>(
    ready: Promise<Input>,
    begin: (input: Input) => Promise<Output>,
    { failed, isSerial = false }: StartOptions = {},
  ): Promise<Output> {
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
    // A place is left once the call is made, or what failed has something else in it.
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
