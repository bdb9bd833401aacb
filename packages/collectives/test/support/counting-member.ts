// A member of an elastic job that does steps until it is told to end. Its state is a number that
// each step changes, so all members have the same at a step, however they came to it.
//
// Note [whole states]
// Where members hold parts of the state, one may call the collective of a step only when it has all
// gradients of the step, has to keep them and the decision until all have done the step, and keeps
// the state of an epoch's source until all have copied it. This one does none of that: it computes
// after the call, keeps nothing, and goes on at once when it has sent its state. The simulations
// with such members show that jobs need none of it where all have the whole state: whoever is
// behind copies from whoever is ahead.

import { type Epoch, EpochOverError, type Member } from '@shardweave/collectives/elastic';

/** What is told of a counting member. */
export interface CountingEvents {
  /** It is in an epoch, whose source's state it has yet to copy. */
  begun?(epoch: Epoch): void;
  /** It calls the collective of a step. */
  called?(epoch: Epoch, step: number): void;
  /** It has done so many steps. */
  done(epoch: Epoch, step: number, state: number): void;
  /** Its epoch is over; `lost` has ids. */
  over?(lost: readonly number[]): void;
  /** Resolves after the pause between two steps. */
  pause(): Promise<void>;
}

export class CountingMember {
  readonly member: Member;
  readonly #events: CountingEvents;
  /** Whether it is to end after the next step. */
  isOver = false;
  #epoch: Epoch | undefined;
  #step = 0;
  #state = 1;

  constructor(member: Member, events: CountingEvents) {
    this.member = member;
    this.#events = events;
  }

  /** The epoch in which it is at work, or was last. */
  get epoch(): Epoch | undefined {
    return this.#epoch;
  }

  /** Rejects with MembershipError where it is no member any more. */
  async run(): Promise<void> {
    let isStopped = true;
    while (!this.isOver) {
      try {
        if (isStopped) {
          const edge = { step: this.#step, note: String(this.#state) };
          this.#epoch = await this.member.reform(edge);
          this.#events.begun?.(this.#epoch);
          await this.#copyState(this.#epoch);
        }
        isStopped = await this.#doStep(this.#epoch!);
        await this.#events.pause();
      } catch (error) {
        if (!(error instanceof EpochOverError)) {
          throw error;
        }
        this.#events.over?.(error.lost.map((rank) => this.#epoch!.members[rank]!.id));
        isStopped = true;
      }
    }
  }

  /** Whether all of the epoch agree to stop at this edge. */
  async #doStep(epoch: Epoch): Promise<boolean> {
    const own = Int32Array.of(this.member.isChangeDue ? 1 : 0, this.#step, -this.#step);
    const most = new Int32Array(3);
    const options = { dtype: 'i32', op: 'max' } as const;
    this.#events.called?.(epoch, this.#step);
    await epoch.group.allReduce(new Uint8Array(own.buffer), new Uint8Array(most.buffer), options);
    if (most[1] !== this.#step || -most[2]! !== this.#step) {
      throw new Error(`step ${this.#step} meets steps ${-most[2]!} to ${most[1]}`);
    }
    this.#state = (this.#state * 31 + this.#step) % 65_521;
    this.#step++;
    this.#events.done(epoch, this.#step, this.#state);
    return most[0] === 1;
  }

  async #copyState({ group, source, step }: Epoch): Promise<void> {
    const state = Int32Array.of(this.#state);
    await group.broadcast(new Uint8Array(state.buffer), { root: source });
    this.#state = state[0]!;
    this.#step = step;
  }
}

/** The state of each step, of which there is one, whoever did it and however often. */
export class StepStates {
  readonly #states = new Map<number, number>();

  get numSteps(): number {
    return this.#states.size;
  }

  /** Throws where the step was done before, with another state. */
  add(step: number, state: number): void {
    const known = this.#states.get(step) ?? state;
    if (known !== state) {
      throw new Error(`step ${step} has two states, ${known} and ${state}`);
    }
    this.#states.set(step, state);
  }

  /** Throws where a step before the last one is missing. */
  check(): void {
    const last = Math.max(...this.#states.keys());
    if (this.#states.size > 0 && this.#states.size !== last) {
      throw new Error(`${this.#states.size} states of ${last} steps`);
    }
  }
}
