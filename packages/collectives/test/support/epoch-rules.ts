// What must never happen in an elastic job, whatever is killed, stopped, cut off or late. It hears
// what members do and what the coordinator decides, and throws at once.

import type { CoordinatorChange, Epoch } from '@shardweave/collectives/elastic';
import { StepStates } from './counting-member.js';

/** What a member knows of an epoch. */
export type KnownEpoch = Pick<Epoch, 'number' | 'joined' | 'source' | 'step'> & {
  readonly members: readonly { readonly id: number; readonly step: number }[];
};

export class EpochRules {
  readonly states = new StepStates();
  readonly #size: { readonly min: number; readonly max: number };
  readonly #isLiving: (id: number) => boolean;
  readonly #epochs = new Map<number, KnownEpoch>();
  #ids = new Set<number>();
  /** The ids that may come again, to a coordinator that was started again. */
  #returning = new Set<number>();
  /** The last epoch in which a member may be that the coordinator has given up. */
  readonly #lastOf = new Map<number, number>();
  /** Who has the state of the job. */
  readonly #holders = new Set<number>();
  readonly #called = new Map<string, Set<number>>();
  /** The last step that all members of an epoch have called, and the newest such epoch. */
  #decided = { epoch: 0, step: -1 };
  #hasRestarted = false;
  numEpochs = 0;
  numSteps = 0;

  /** @param isLiving whether the member of an id may still do something */
  constructor(
    size: { readonly min: number; readonly max: number },
    isLiving: (id: number) => boolean,
  ) {
    this.#size = size;
    this.#isLiving = isLiving;
  }

  /** The number of the newest epoch that anybody has begun. */
  get newest(): number {
    return Math.max(0, ...this.#epochs.keys());
  }

  isHolder(id: number): boolean {
    return this.#holders.has(id);
  }

  /** A coordinator begins that knows nothing but what those tell who live. */
  restarted(): void {
    this.#hasRestarted = true;
    this.#lastOf.clear();
    this.#ids = new Set([...this.#ids].filter(this.#isLiving));
    this.#returning = new Set(this.#ids);
    for (const [number, { members }] of this.#epochs) {
      if (number !== this.#decided.epoch && !members.some(({ id }) => this.#isLiving(id))) {
        this.#epochs.delete(number);
      }
    }
  }

  /** The coordinator has decided something. */
  changed({ came, gone, epoch, members }: CoordinatorChange): void {
    for (const id of came) {
      const isNew = id > Math.max(-1, ...this.#ids);
      expectThat(this.#returning.delete(id) || isNew, `id ${id} after ${[...this.#ids].join()}`);
      this.#ids.add(id);
    }
    for (const { id } of gone) {
      this.#lastOf.set(id, members.includes(id) ? epoch : epoch - 1);
    }
  }

  /** A member hears that it is to begin. */
  begun(id: number, epoch: KnownEpoch): void {
    const { number, members, joined, step } = epoch;
    const own = members.find((member) => member.id === id);
    expectThat(own !== undefined, `member ${id} is not of epoch ${number}`);
    const known = this.#epochs.get(number);
    if (known === undefined) {
      this.#epochs.set(number, epoch);
      this.numEpochs++;
      this.#checkEpoch(epoch);
    } else {
      const texts = [known, epoch].map(textOf);
      expectThat(texts[0] === texts[1], `two epochs ${number}: ${texts.join(' and ')}`);
    }
    if (joined.length === members.length || own!.step === step) {
      this.#holders.add(id);
    }
  }

  /** A member has copied the state of an epoch's source. */
  copied(id: number): void {
    this.#holders.add(id);
  }

  /** A member calls the collective of a step. */
  called(id: number, { number, members }: KnownEpoch, step: number): void {
    this.#holders.add(id);
    const key = `${number} ${step}`;
    const called = this.#called.get(key) ?? new Set();
    this.#called.set(key, called);
    if (!called.has(id) && called.add(id).size === members.length) {
      this.#decide(number, step);
    }
  }

  /** A member has done so many steps. */
  done({ number, members }: KnownEpoch, step: number, state: number): void {
    const called = this.#called.get(`${number} ${step - 1}`)?.size ?? 0;
    expectThat(called === members.length, `step ${step} of epoch ${number} is of ${called} only`);
    this.states.add(step, state);
  }

  /** All members of an epoch have called the collective of a step; some may get there later. */
  #decide(number: number, step: number): void {
    const { epoch } = this.#decided;
    this.numSteps++;
    if (number >= epoch) {
      this.#decided = { epoch: number, step: Math.max(step, this.#decided.step) };
      return;
    }
    // Who was stopped may find a call that the others had made, and do that step for itself alone.
    const next = Math.min(...[...this.#epochs.keys()].filter((other) => other > number));
    const isRepeated = step <= this.#epochs.get(next)!.step;
    expectThat(isRepeated, `step ${step} of epoch ${number} goes on beside epoch ${epoch}`);
  }

  #checkEpoch({ number, members, joined, source, step }: KnownEpoch): void {
    const { length } = members;
    const { min, max } = this.#size;
    expectThat(length >= min && length <= max, `epoch ${number} has ${length} members`);
    for (const { id } of members) {
      const last = this.#lastOf.get(id) ?? number;
      expectThat(last >= number, `member ${id} of epoch ${number} was given up after ${last}`);
    }
    const isFirst = joined.length === length;
    const holders = members.filter(
      ({ id }) => isFirst || (!joined.includes(id) && this.#holders.has(id)),
    );
    const best = holders.toSorted((a, b) => b.step - a.step || a.id - b.id)[0];
    expectThat(best === members[source], `epoch ${number} takes the state of rank ${source}`);
    if (this.#isNewestDead()) {
      // Only a coordinator that knew nothing goes on from an older epoch, and does its steps again.
      this.#decided.step = -1;
    }
    const decided = this.#decided;
    const isLate = number < decided.epoch; // it was formed, and somebody hears of it only now
    const begins = `epoch ${number} begins at ${step}, after ${decided.step}`;
    expectThat(isLate || step >= decided.step, begins);
  }

  /** Whether nobody lives who could tell a new coordinator of the epoch that decided last. */
  #isNewestDead(): boolean {
    const { members = [] } = this.#epochs.get(this.#decided.epoch) ?? {};
    return this.#hasRestarted && !members.some(({ id }) => this.#isLiving(id));
  }
}

function textOf({ source, members }: KnownEpoch): string {
  return JSON.stringify([source, members.map(({ id, step }) => [id, step])]);
}

export function expectThat(holds: boolean, otherwise: string): void {
  if (!holds) {
    throw new Error(otherwise);
  }
}
