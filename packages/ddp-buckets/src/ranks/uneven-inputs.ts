// What join adds to a wrapper's synchronization: which ranks still have inputs in each round, and
// what a rank without inputs does for the others' backwards and buffers.

import type { ProcessGroup } from '@shardweave/collectives';
import { type JoinRound, JoinRounds } from './join-rounds.js';

export interface JoinBody {
  /** This rank's steps. */
  readonly body: () => Promise<void>;
  /** Whether sums are divided by the number of ranks that have inputs, not by that of all ranks. */
  readonly isScaledToActive: boolean;
  /** Called when the body has failed; resolves when the other ranks know. */
  readonly onFailure: (error: unknown) => Promise<void>;
  /** Called when this rank has run out: from here on it does what the others do. */
  readonly onOut: () => void;
  /** Called when the others run a backward. */
  readonly onBackward: () => Promise<void>;
  /** Called when the others send buffers, from rank `root`. */
  readonly onBuffers: (root: number) => Promise<void>;
}

export class UnevenInputs {
  #rounds: JoinRounds | undefined;
  #isScaledToActive = false;
  #round: Promise<JoinRound> | undefined;

  /** Whether a join is under way. */
  get isOpen(): boolean {
    return this.#rounds !== undefined;
  }

  /**
   * The round of the present backward, which has the ranks that take part; undefined outside join,
   * where all do.
   */
  get round(): Promise<JoinRound> | undefined {
    return this.#round;
  }

  /** Tells the other ranks, inside join, that a backward comes next. */
  announceBackward(): void {
    this.#round = this.#rounds?.announce('backward');
  }

  /**
   * Tells the other ranks, inside join, that buffers come next.
   * @returns the rank that the buffers come from
   */
  async announceBuffers(): Promise<number> {
    const round = await this.#rounds?.announce('buffers');
    return round?.active[0] ?? 0;
  }

  /** The divisor of sums to which `numActive` ranks have added. */
  postdivide(
    { predivide, postdivide }: { readonly predivide: number; readonly postdivide: number },
    numActive: number | undefined,
  ): number {
    if (!this.isOpen || !this.#isScaledToActive || postdivide === 1) {
      return postdivide;
    }
    return numActive! / predivide;
  }

  /**
   * Runs `body`, and then takes part in what the others do until no rank has inputs. Collective.
   * @returns the rank whose weights are the newest
   */
  async run(group: ProcessGroup, join: JoinBody): Promise<number> {
    const rounds = new JoinRounds(group);
    this.#rounds = rounds;
    this.#isScaledToActive = join.isScaledToActive;
    try {
      await join.body();
      join.onOut();
      await this.#followOthers(rounds, join);
    } catch (error) {
      await join.onFailure(error);
      throw error;
    } finally {
      this.#rounds = undefined;
      this.#round = undefined;
    }
    return rounds.lastActive;
  }

  async #followOthers(rounds: JoinRounds, { onBackward, onBuffers }: JoinBody): Promise<void> {
    for (;;) {
      this.#round = rounds.announce(undefined);
      const { active, event } = await this.#round;
      if (event === undefined) {
        return;
      }
      await (event === 'buffers' ? onBuffers(active[0]!) : onBackward());
    }
  }
}
