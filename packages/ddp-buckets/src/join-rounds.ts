// Uneven inputs: before each of its collectives a rank that still has inputs says so, and ranks
// that have run out hear what they must take part in, until nobody has any.

import type { ProcessGroup } from '@shardweave/collectives';

/** What ranks with inputs are about to do together. */
export type JoinEvent = 'backward' | 'buffers';

export interface JoinRound {
  /** The ranks that have inputs, ascending; empty when all have run out. */
  readonly active: readonly number[];
  /** What these ranks do; undefined when all have run out. */
  readonly event: JoinEvent | undefined;
}

const CODES: readonly (JoinEvent | undefined)[] = [undefined, 'backward', 'buffers'];

export class JoinRounds {
  readonly #group: ProcessGroup;
  #lastActive = 0;
  #numRounds = 0;

  constructor(group: ProcessGroup) {
    this.#group = group;
  }

  /** The lowest rank that took part in the last round that had any: its weights are the newest. */
  get lastActive(): number {
    return this.#lastActive;
  }

  /**
   * Tells the others what comes next here, a byte of every rank. `event` is undefined where this
   * rank has run out.
   */
  announce(event: JoinEvent | undefined): Promise<JoinRound> {
    const group = this.#group;
    const identity = `ddp join round ${this.#numRounds++}`;
    return group.starts.enqueue(Promise.resolve(), async () => {
      const all = new Uint8Array(group.worldSize);
      const own = Uint8Array.of(CODES.indexOf(event));
      await group.allGather(own, all, { dtype: 'u8', tag: 'ddp join', identity });
      const active = [...all.keys()].filter((rank) => all[rank] !== 0);
      if (active.length > 0) {
        this.#lastActive = active[0]!;
      }
      return { active, event: CODES[all[active[0] ?? group.rank]!] };
    });
  }
}
