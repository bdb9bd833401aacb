// What must never happen in an elastic job, whatever is killed, stopped, cut off or late. It hears
// what members and the coordinator tell, and throws at once.

import type { CoordinatorChange, Epoch } from '@shardweave/collectives/elastic';
import { StepStates } from './counting-member.js';

/** What the rules ask about members. */
export interface Living {
  /** Whether the member may still do something. */
  isLiving(id: number): boolean;
}

export class EpochRules {
  readonly states = new StepStates();
  readonly #size: { readonly min: number; readonly max: number };
  readonly #living: Living;
  readonly #tables = new Map<number, string>();
  readonly #members = new Map<number, readonly number[]>();
  /** The step at which each epoch begins. */
  readonly #begins = new Map<number, number>();
  readonly #ids = new Set<number>();
  /** The ids that may come again, to a coordinator that was started again. */
  #returning = new Set<number>();
  /** The last epoch in which a member may be that the coordinator has given up. */
  readonly #lastOf = new Map<number, number>();
  /** Who has the state of the job. */
  readonly #holders = new Set<number>();
  readonly #called = new Map<string, Set<number>>();
  /** The last step that all members of an epoch have called, and the epoch. */
  #decided = { epoch: 0, step: -1 };
  #hasRestarted = false;

  constructor(size: { readonly min: number; readonly max: number }, living: Living) {
    this.#size = size;
    this.#living = living;
  }

  get numEpochs(): number {
    return this.#tables.size;
  }

  isHolder(id: number): boolean {
    return this.#holders.has(id);
  }

  /** A coordinator begins that knows nothing of those whom the one before has given up. */
  restarted(): void {
    this.#hasRestarted = true;
    this.#lastOf.clear();
    this.#returning = new Set(this.#ids);
  }

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
  begun(id: number, epoch: Epoch): void {
    const { number, source, step } = epoch;
    const members = epoch.members.map((member) => member.id);
    expectThat(members[epoch.group.rank] === id, `member ${id} has another's rank in ${number}`);
    const text = JSON.stringify([source, epoch.members.map((one) => [one.id, one.step])]);
    const known = this.#tables.get(number);
    expectThat((known ?? text) === text, `two tables of epoch ${number}: ${known} and ${text}`);
    if (known === undefined) {
      this.#tables.set(number, text);
      this.#members.set(number, members);
      this.#begins.set(number, step);
      this.#checkTable(epoch, members);
    }
    if (epoch.joined.length === members.length || step === epoch.members[epoch.group.rank]!.step) {
      this.#holders.add(id);
    }
  }

  /** A member calls the collective of a step. */
  called(id: number, { number, members }: Epoch, step: number): void {
    this.#holders.add(id);
    const key = `${number} ${step}`;
    const called = this.#called.get(key) ?? new Set();
    this.#called.set(key, called.add(id));
    if (called.size === members.length) {
      this.#decide(number, step);
    }
  }

  /** All members of an epoch have called the collective of a step. */
  #decide(number: number, step: number): void {
    const { epoch } = this.#decided;
    if (number >= epoch) {
      this.#decided = { epoch: number, step: Math.max(step, this.#decided.step) };
      return;
    }
    // Who was stopped may find a call that the others had made, and do that step for itself alone.
    const next = Math.min(...[...this.#begins.keys()].filter((other) => other > number));
    const isRepeated = step <= this.#begins.get(next)!;
    expectThat(isRepeated, `step ${step} of epoch ${number} goes on beside epoch ${epoch}`);
  }

  /** A member has done so many steps. */
  done({ number, members }: Epoch, step: number, state: number): void {
    const called = this.#called.get(`${number} ${step - 1}`)?.size ?? 0;
    expectThat(called === members.length, `step ${step} of epoch ${number} is of ${called} only`);
    this.states.add(step, state);
  }

  #checkTable(epoch: Epoch, members: readonly number[]): void {
    const { number, joined, source, step } = epoch;
    const { min, max } = this.#size;
    const { length } = members;
    expectThat(length >= min && length <= max, `epoch ${number} has ${length} members`);
    for (const id of members) {
      const last = this.#lastOf.get(id) ?? number;
      expectThat(last >= number, `member ${id} of epoch ${number} was given up after ${last}`);
    }
    const isFirst = joined.length === length;
    const holders = epoch.members.filter(
      ({ id }) => isFirst || (!joined.includes(id) && this.#holders.has(id)),
    );
    const best = holders.toSorted((a, b) => b.step - a.step || a.id - b.id)[0];
    expectThat(best === epoch.members[source], `epoch ${number} has the state of rank ${source}`);
    if (this.#isNewestDead()) {
      // Only a coordinator that knew nothing goes on from an older epoch, and does its steps again.
      this.#decided.step = -1;
    }
    const { decided } = { decided: this.#decided };
    const isLate = number < decided.epoch; // it was formed, and somebody hears of it only now
    expectThat(
      isLate || step >= decided.step,
      `epoch ${number} begins at ${step}, after ${decided.step}`,
    );
  }

  /** Whether nobody lives of the epoch that decided last, and the coordinator may not know of it. */
  #isNewestDead(): boolean {
    const newest = this.#members.get(this.#decided.epoch) ?? [];
    return this.#hasRestarted && newest.every((id) => !this.#living.isLiving(id));
  }
}

function expectThat(holds: boolean, otherwise: string): void {
  if (!holds) {
    throw new Error(otherwise);
  }
}
