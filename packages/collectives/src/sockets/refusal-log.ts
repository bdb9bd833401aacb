// Keeps the last peers that a listener turned away, because they often show why a rank is missing.

import type { Refusal } from './door.js';

const MAX_KEPT = 3;

export class RefusalLog {
  readonly #tell: ((refusal: Refusal) => void) | undefined;
  readonly #last: Refusal[] = [];
  #count = 0;

  /** @param tell called with each of them, too */
  constructor(tell?: (refusal: Refusal) => void) {
    this.#tell = tell;
  }

  readonly add = (refusal: Refusal): void => {
    this.#count++;
    this.#last.push(refusal);
    if (this.#last.length > MAX_KEPT) {
      this.#last.shift();
    }
    this.#tell?.(refusal);
  };

  /** For example `refused 127.0.0.1:5123: wrong secret`; empty where nobody was refused. */
  describe(): string {
    const listed = this.#last.map(({ from, reason }) => `${from}: ${reason}`).join(', ');
    const more = this.#count - this.#last.length;
    return this.#count === 0 ? '' : `refused ${listed}${more > 0 ? `, and ${more} before` : ''}`;
  }
}
