// A process group with the order in which its collectives start: that of the calls here, which is
// program order and so the same on every rank, whenever each one's input is ready. All that use a
// group share its one lane: two wrappers, two calls at once.

import type { ProcessGroup } from '@shardweave/collectives';

// Keyed by group object: the lane is the group's own state, not the module's.
const LANES = new WeakMap<ProcessGroup, Lane>();

export class Lane {
  readonly group: ProcessGroup;
  #lastStart: Promise<unknown> = Promise.resolve();
  #numUsers = 0;

  private constructor(group: ProcessGroup) {
    this.group = group;
  }

  static of(group: ProcessGroup): Lane {
    const known = LANES.get(group);
    if (known !== undefined) {
      return known;
    }
    const lane = new Lane(group);
    LANES.set(group, lane);
    return lane;
  }

  /** The number of a user of this group: the same on all ranks that ask in one order. */
  nextUser(): number {
    return this.#numUsers++;
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
