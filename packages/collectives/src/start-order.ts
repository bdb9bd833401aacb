// Starts collectives in the order of the calls, though each waits for its input first. On every rank
// the calls come in program order, so the sequences agree whatever arrives when.

export interface StartOptions {
  /**
   * Called in a call's place where its input fails, so that the sequence has as many calls on every
   * rank. Default: nothing takes its place.
   */
  readonly unready?: (error: unknown) => Promise<void>;
  /** Later calls wait for the end of this one, too: it starts further collectives on its way. */
  readonly isSerial?: boolean;
}

/** The order in which collectives of one group start. Each group has one, for all that use it. */
export class StartOrder {
  #lastStart: Promise<unknown> = Promise.resolve();
  #numUsers = 0;

  /** The number of a user of the group: the same on all ranks that ask in one order. */
  nextUser(): number {
    return this.#numUsers++;
  }

  /** Calls `begin` with what `ready` gives, after every earlier begin was called. */
  enqueue<Input, Output>(
    ready: Promise<Input>,
    begin: (input: Input) => Promise<Output>,
    { unready, isSerial = false }: StartOptions = {},
  ): Promise<Output> {
    const started = this.#lastStart
      .then(() => ready)
      .then(
        (input) => ({ ended: begin(input) }),
        (error: unknown) => ({ ended: rejectAfter(unready?.(error), error) }),
      );
    const ended = started.then((start) => start.ended);
    // Whoever awaits it sees the failure; until then it must not count as unhandled.
    ended.catch(() => undefined);
    const next: Promise<unknown> = isSerial ? ended : started;
    this.#lastStart = next.catch(() => undefined);
    return ended;
  }
}

async function rejectAfter(told: Promise<void> | undefined, error: unknown): Promise<never> {
  await told;
  throw error;
}
