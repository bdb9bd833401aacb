// Uneven inputs: before each of its collectives a rank that still has inputs announces it, and the
// ranks that have run out hear what they have to take part in, until no rank has any inputs.

import type { ProcessGroup } from '@shardweave/collectives';

/** What the ranks with inputs are about to do together. */
export type JoinEvent = 'backward' | 'buffers';

export interface JoinRound {
  /** The ranks that have inputs, ascending; empty when all have run out. */
  readonly active: readonly number[];
  /** What these ranks do next; undefined when all have run out. */
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

  /**
   * The lowest rank that took part in the last round in which any did; its weights are the newest.
   */
  get lastActive(): number {
    return this.#lastActive;
  }

  /**
   * Tells the other ranks what this one does next, in one byte from each rank. `event` is undefined
   * where this rank has run out.
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
