// A small seeded generator (Marsaglia's xorshift32), which is good enough for test data only.

import { fnv1a } from '@shardweave/dtypes';

export class SeededRandom {
  #state: number;

  /** @param seed any text, such as a case's name. */
  constructor(seed: string) {
    this.#state = fnv1a(seed) || 1;
    for (let i = 0; i < 8; i++) {
      this.bits();
    }
  }

  /** Returns a random 32-bit word, which is never 0. */
  bits(): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.#state = x >>> 0;
    return this.#state;
  }

  /** Returns a number that is uniform in [low, high). */
  uniform(low: number, high: number): number {
    return low + ((high - low) * this.bits()) / 2 ** 32;
  }

  /** Returns an integer of [low, high), each about equally often. */
  integer(low: number, high: number): number {
    return low + (this.bits() % (high - low));
  }
}
