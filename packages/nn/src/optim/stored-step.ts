// The part of an optimizer's step that concerns flats off the device: the step of each of them, and
// the commits at the end. If one fails, the step can be finished later. See Note [steps over a
// store].

import { type FlatHome, type FlatTurn, visitFlats } from '../flat/stores/flat-home.js';
import type { StoreUse, UnfinishedStep } from '../flat/stores/store-use.js';

export interface StoredStepOptions {
  /**
   * How many flats may be on their way to the device while another one is stepped, and how many on
   * their way back.
   */
  readonly flatsAhead: number;
  /**
   * Called once: with true when every flat is stepped and committed, with false when the step could
   * not begin at all.
   */
  ended(isWhole: boolean): void;
}

export class StoredStep implements UnfinishedStep {
  readonly #homes: readonly FlatHome[];
  readonly #left = new Set<FlatTurn>();
  readonly #uncommitted: Set<StoreUse>;
  readonly #options: StoredStepOptions;
  readonly #releases: readonly (() => void)[];
  #hasBegun = false;

  /**
   * @param homes the homes of all flats with a gradient
   * @param turns the turns of those flats among them that have something to step
   */
  constructor(
    homes: readonly FlatHome[],
    turns: readonly Omit<FlatTurn, 'isChanging'>[],
    options: StoredStepOptions,
  ) {
    this.#homes = homes;
    this.#options = options;
    for (const { start, use, kept } of turns) {
      const turn: FlatTurn = {
        start,
        use,
        isChanging: true,
        kept: () => {
          this.#left.delete(turn);
          kept?.();
        },
      };
      this.#left.add(turn);
    }
    this.#uncommitted = new Set(homes.map(({ steps }) => steps));
    this.#releases = homes.map((home) => home.holdGradient());
  }

  /** Steps the flats that are left, and commits. If it rejects, it may be called again. */
  async finish(): Promise<void> {
    const steps = [...new Set(this.#homes.map((home) => home.steps))];
    try {
      let busy = steps[0];
      while (busy !== undefined) {
        await busy.rest(this);
        busy = steps.find((step) => !step.isFree(this));
      }
    } catch (error) {
      if (!this.#hasBegun) {
        this.#end(false); // the step counts as never called
      }
      throw error;
    }
    this.#hasBegun = true;
    const ends = steps.map((step) => step.begin(this));
    let isWhole = false;
    try {
      for (const home of this.#homes) {
        await home.flush();
      }
      await visitFlats([...this.#left], this.#options.flatsAhead);
      for (const one of [...this.#uncommitted]) {
        await one.commit(this);
        this.#uncommitted.delete(one);
      }
      isWhole = true;
    } finally {
      for (const end of ends) {
        end(isWhole);
      }
    }
    this.#end(true);
  }

  #end(isWhole: boolean): void {
    for (const release of this.#releases) {
      release();
    }
    this.#options.ended(isWhole);
  }
}
