// Pseudo-random numbers that a seed repeats, the same on every machine: 32 bits of state that count
// up, mixed by multiplications. They are good enough to draw schedules, and for nothing else.

/**
 * Pseudo-random numbers that a 32-bit seed repeats, the same on every machine. They are good enough
 * to draw schedules, not for statistics or secrets.
 */
export class SeededRandom {
  #state: number;

  constructor(seed: number) {
    this.#state = Math.imul(seed ^ 0x2545f491, 0x9e3779b1) >>> 0;
  }

  /** A number in [0, 1). */
  next(): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    let x = this.#state;
    x = Math.imul(x ^ (x >>> 16), 0x21f0aaad);
    x = Math.imul(x ^ (x >>> 15), 0x735a2d97);
    return ((x ^ (x >>> 15)) >>> 0) / 2 ** 32;
  }

  /** An integer in [0, limit). */
  below(limit: number): number {
    return Math.floor(this.next() * limit);
  }

  /** A number in [from, to). */
  between(from: number, to: number): number {
    return from + this.next() * (to - from);
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)]!;
  }

  /** An exponentially distributed number. */
  exponential(mean: number): number {
    return -mean * Math.log(1 - this.next());
  }

  /** An independent stream: what one part draws doesn't change what another gets. */
  fork(): SeededRandom {
    return new SeededRandom(Math.floor(this.next() * 2 ** 32));
  }
}
