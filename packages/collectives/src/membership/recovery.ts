// What a coordinator that was started again learns of the job from those who come to it.

import type { LastEpoch, Said } from './messages.js';

type Here<Address> = Extract<Said<Address>, { readonly type: 'here' }>;

/** The epoch in which a coordinator that knew nothing goes on. */
export interface Recovered<Address> {
  readonly epoch: number;
  readonly members: readonly number[];
  /** The ids of those who have come. */
  readonly present: ReadonlySet<number>;
  /** Whether all of them have come, and are at work in that epoch. */
  readonly isRunning: boolean;
  /** The highest number, of an epoch or an id, of which anybody knows. */
  readonly maxKnown: number;
  /** Who has come, by connection. */
  readonly claims: ReadonlyMap<number, Here<Address>>;
}

export class Recovery<Address> {
  readonly #claims = new Map<number, Here<Address>>();

  hear(from: number, here: Here<Address>): void {
    this.#claims.set(from, here);
  }

  gone(from: number): void {
    this.#claims.delete(from);
  }

  get #lasts(): readonly LastEpoch[] {
    return [...this.#claims.values()].flatMap(({ last }) => last ?? []);
  }

  /** The connections of all who have come. */
  get connections(): readonly number[] {
    return [...this.#claims.keys()];
  }

  /** What is missing to go on, as far as those know who have come. */
  get shortage(): string {
    const newest = newestOf(this.#lasts);
    if (newest === undefined) {
      return 'nobody has come who was in it before';
    }
    const { epoch, members } = newest;
    const present = presentOf(newest, this.#lasts);
    const who = `members ${[...present].join(', ')} of epoch ${epoch}`;
    return `only ${who} have come again, of ${members.length}; where the others are dead, 'adopt' goes on without them`;
  }

  /**
   * The epoch in which the job goes on, as far as can be known; undefined where it can't. See Note
   * [never two jobs] in coordinator.ts.
   * @param isAdopting whether fewer than half may go on
   * @param isLate whether those have given up who have not come
   */
  agreed({
    isAdopting,
    isLate,
  }: {
    readonly isAdopting: boolean;
    readonly isLate: boolean;
  }): Recovered<Address> | undefined {
    const lasts = this.#lasts;
    const newest = newestOf(lasts);
    if (newest === undefined) {
      return undefined;
    }
    const { epoch, members } = newest;
    const present = presentOf(newest, lasts);
    const isWhole = present.size === members.length;
    const isMost = 2 * present.size > members.length;
    if ((!isMost && !isAdopting) || (!isWhole && !isLate)) {
      return undefined;
    }
    const isAtWork = (last: LastEpoch) => last.isRunning && last.epoch === epoch;
    return {
      epoch,
      members,
      present,
      isRunning: isWhole && lasts.filter(({ id }) => present.has(id)).every(isAtWork),
      maxKnown: Math.max(...[...this.#claims.values()].flatMap(numbersOf)),
      claims: this.#claims,
    };
  }
}

/** The numbers, of epochs and of ids, that somebody knows who has come. */
function numbersOf({ told, last }: Here<unknown>): readonly number[] {
  return last === undefined ? [told] : [told, last.epoch, last.id, ...last.members];
}

function newestOf(lasts: readonly LastEpoch[]): LastEpoch | undefined {
  return [...lasts].sort((a, b) => b.epoch - a.epoch)[0];
}

function presentOf({ members }: LastEpoch, lasts: readonly LastEpoch[]): ReadonlySet<number> {
  return new Set(lasts.map(({ id }) => id).filter((id) => members.includes(id)));
}
