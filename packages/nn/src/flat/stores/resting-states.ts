// The states that optimizers keep for one flat in a store, each under a number of its own.

import type { Tensor } from '@shardweave/tensor-core';
import {
  HEAD,
  isOverlapping,
  isSameSignature,
  RestingState,
  refuseSignature,
  type StateSignature,
} from './resting-state.js';
import type { StoreUse } from './store-use.js';

interface KeptState {
  /** Its number in the store, from 1. */
  readonly number: number;
  readonly state: RestingState;
  readonly owner: object | undefined;
  /** Whether its owner was disposed. The next optimizer of the same elements replaces it. */
  readonly isLeft: boolean;
}

/** The optimizer states of one flat in a store. */
export class RestingStates {
  readonly #flat: Tensor;
  readonly #use: StoreUse;
  #name = '';
  /** States of an earlier process have no owner until an optimizer of their signature asks. */
  #kept: KeptState[] = [];

  constructor(flat: Tensor, use: StoreUse) {
    this.#flat = flat;
    this.#use = use;
  }

  /** Takes its place under the flat's name, with the states that are there where it resumes. */
  async open(name: string, { resume }: { readonly resume: boolean }): Promise<void> {
    this.#name = name;
    this.#kept = [];
    for (const number of resume ? this.#numbersAtRest() : []) {
      const prefix = this.#prefix(number);
      const state = await RestingState.resume(this.#use.store, prefix, this.#flat.size * 4);
      this.#kept.push({ number, state, owner: undefined, isLeft: false });
    }
  }

  /**
   * The numbers of the states that the store has, ascending. An optimizer that took a number and no
   * step has left a gap.
   */
  #numbersAtRest(): number[] {
    const prefix = `${this.#name}/`;
    const keys = this.#use.store.keys().filter((key) => key.startsWith(prefix));
    const numbers = keys.flatMap((key) => {
      const found = HEAD_KEY.exec(key.slice(prefix.length));
      return found === null ? [] : [Number(found[1] ?? 1)];
    });
    return numbers.sort((a, b) => a - b);
  }

  /** All states, in the order in which they were made or found. */
  get all(): RestingState[] {
    return this.#kept.map(({ state }) => state);
  }

  /** The most steps that any of them has seen; undefined where there is none. */
  get step(): number | undefined {
    return mostSteps(this.#kept);
  }

  /**
   * The state of an optimizer. It is the optimizer's own, or else one that an earlier process left
   * and that no optimizer has taken over yet, or else a new one.
   * @throws {OptimizerError} where all states at rest belong to other optimizers
   */
  of(owner: object, signature: StateSignature): RestingState {
    const own = this.#kept.find((state) => state.owner === owner);
    if (own !== undefined) {
      return own.state;
    }
    const resting = this.#kept.filter((state) => state.owner === undefined);
    // Two states fit where an optimizer was made anew and nobody disposed the old one. The last is
    // the newer one.
    const fitting = resting.findLast(({ state }) => isSameSignature(state.signature, signature));
    if (fitting !== undefined) {
      this.#kept[this.#kept.indexOf(fitting)] = { ...fitting, owner };
      return fitting.state;
    }
    // An optimizer that never stepped has left no state, so other elements are no mistake.
    const same = this.#kept.filter(({ state }) => isOverlapping(state.signature, signature));
    if (same.some((state) => state.owner === undefined)) {
      const kept = resting.map(({ state }) => state.signature);
      refuseSignature(this.#name, kept, signature);
    }
    const numbers = new Set(this.#kept.map(({ number }) => number));
    let number = 1;
    while (numbers.has(number)) {
      number += 1;
    }
    const numStepsBefore = mostSteps(same) ?? 0;
    for (const left of same.filter(({ isLeft }) => isLeft)) {
      this.#use.awaitBeforeCommit(left.state.remove().catch(() => undefined));
      this.#kept.splice(this.#kept.indexOf(left), 1);
    }
    const options = { signature, byteLength: this.#flat.size * 4, numStepsBefore };
    const state = new RestingState(this.#use.store, this.#prefix(number), options);
    this.#kept.push({ number, state, owner, isLeft: false });
    return state;
  }

  /**
   * Tells that the owner takes no more steps. The state stays for a later process, until the state
   * of another optimizer takes its place.
   */
  leave(owner: object): void {
    const index = this.#kept.findIndex((state) => state.owner === owner);
    if (index >= 0) {
      this.#kept[index] = { ...this.#kept[index]!, isLeft: true };
    }
  }

  /** The keys' prefix: `name/` for the first optimizer, then `name/2/`, `name/3/`. */
  #prefix(number: number): string {
    return number === 1 ? `${this.#name}/` : `${this.#name}/${number}/`;
  }
}

/** The key of a state's head behind the name of its flat, with the state's number if above 1. */
const HEAD_KEY = new RegExp(`^(?:(\\d+)/)?${HEAD}$`);

function mostSteps(states: readonly KeptState[]): number | undefined {
  const steps = states.flatMap(({ state }) => state.numSteps ?? []);
  return steps.length === 0 ? undefined : Math.max(...steps);
}
