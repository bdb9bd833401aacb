// Starts collectives in the order of the calls, though each waits for its input first. On every
// rank the calls come in program order, so the sequences agree whatever arrives when.

/** One sequence; gathers and reductions have one each. */
export class StartOrder {
  #lastStart: Promise<unknown> = Promise.resolve();

  /**
   * Calls `begin` with what `ready` gives, after every earlier begin was called. Later ones don't
   * wait for its end.
   * @param unready called in its place where `ready` fails, so that the sequence has as many calls
   */
  enqueue<Input, Output>(
    ready: Promise<Input>,
    begin: (input: Input) => Promise<Output>,
    unready: (error: unknown) => Promise<void>,
  ): Promise<Output> {
    const started = this.#lastStart
      .then(() => ready)
      .then(
        (input) => ({ ended: begin(input) }),
        (error: unknown) => ({ ended: rejectAfter(unready(error), error) }),
      );
    this.#lastStart = started.catch(() => undefined);
    const ended = started.then((start) => start.ended);
    // Whoever awaits it sees the failure; until then it must not count as unhandled.
    ended.catch(() => undefined);
    return ended;
  }
}

async function rejectAfter(told: Promise<void>, error: unknown): Promise<never> {
  await told;
  throw error;
}
