// What join adds to a wrapper's synchronization: who still has inputs in each round, and the part
// that a rank without any takes in the others' backwards and buffers.

import type { ProcessGroup } from '@shardweave/collectives';
import { type JoinRound, JoinRounds } from './join-rounds.js';

export interface JoinBody {
  /** This rank's steps. */
  readonly body: () => Promise<void>;
  /** Divide by the ranks that have inputs, not by all. */
  readonly isScaledToActive: boolean;
  /** It has failed: returns when the others know. */
  readonly onFailure: (error: unknown) => Promise<void>;
  /** This rank has run out: what others do from here on, it does too. */
  readonly onOut: () => void;
  /** The others go backward. */
  readonly onBackward: () => Promise<void>;
  /** The others send buffers, from `root`. */
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

  /** Who takes part in the present backward; undefined outside join, where all do. */
  get round(): Promise<JoinRound> | undefined {
    return this.#round;
  }

  /** Inside join: tells the others that a backward comes next. */
  announceBackward(): void {
    this.#round = this.#rounds?.announce('backward');
  }

  /** Inside join: tells the others that buffers come next. The rank that they come from. */
  async announceBuffers(): Promise<number> {
    const round = await this.#rounds?.announce('buffers');
    return round?.active[0] ?? 0;
  }

  /** What sums are divided by where `numActive` ranks have added to them. */
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
   * Runs `body`, and then takes part in what the others do until nobody has inputs. Collective.
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
