// A process group with the order in which its collectives start: that of the calls here, which is
// program order and so the same on every rank, whenever each one's input is ready.

import type { ProcessGroup } from '@shardweave/collectives';

export class Lane {
  readonly group: ProcessGroup;
  #lastStart: Promise<unknown> = Promise.resolve();

  constructor(group: ProcessGroup) {
    this.group = group;
  }

  /**
   * Calls `begin` with what `ready` gives, after every earlier begin was called. Later ones wait for
   * its end only where it is serial: it starts further collectives on its way.
   */
  enqueue<Input, Output>(
    ready: Promise<Input>,
    begin: (input: Input) => Promise<Output>,
    options: { readonly isSerial?: boolean } = {},
  ): Promise<Output> {
    const started = this.#lastStart.then(() => ready).then((input) => ({ ended: begin(input) }));
    const ended = started.then((start) => start.ended);
    // Whoever awaits it sees the failure; until then it must not count as unhandled.
    ended.catch(() => undefined);
    const next: Promise<unknown> = options.isSerial === true ? ended : started;
    this.#lastStart = next.catch(() => undefined);
    return ended;
  }
}
