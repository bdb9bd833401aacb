// Tells of the peers that a listener turned away, some a second, and keeps the last ones, because
// they often show why a rank is missing.

import type { TurnedAway } from './listener.js';
import { TokenBucket } from './token-bucket.js';

/**
 * Somebody whose connection was turned away, and why. The reason has printable ASCII only, because
 * a stranger may have chosen its text.
 */
export interface Refusal extends TurnedAway {
  /** The number of those before it that were not told, because of a flood only some are. */
  readonly numLeftOut: number;
}

const MAX_KEPT = 3;

const MAX_REASON_LENGTH = 300;

/** A flood turns some hundred away a second, and somebody may write each to a log. */
const MAX_TOLD_PER_SECOND = 10;

export class RefusalLog {
  readonly #tell: ((refusal: Refusal) => void) | undefined;
  readonly #last: TurnedAway[] = [];
  readonly #tokens = new TokenBucket(MAX_TOLD_PER_SECOND);
  #count = 0;
  #numLeftOut = 0;

  /** @param tell called with at most some ten of them a second, too */
  constructor(tell?: (refusal: Refusal) => void) {
    this.#tell = tell;
  }

  readonly add = ({ from, reason: said }: TurnedAway): void => {
    // Strangers may have chosen the reason's text, and it goes into logs and messages.
    const reason = said.replace(/[^\x20-\x7e]/g, '?').slice(0, MAX_REASON_LENGTH);
    this.#count++;
    this.#last.push({ from, reason });
    if (this.#last.length > MAX_KEPT) {
      this.#last.shift();
    }
    if (this.#tokens.take()) {
      this.#tell?.({ from, reason, numLeftOut: this.#numLeftOut });
      this.#numLeftOut = 0;
    } else {
      this.#numLeftOut++;
    }
  };

  /** For example `refused 127.0.0.1:5123: wrong secret`; empty where nobody was refused. */
  describe(): string {
    const listed = this.#last.map(({ from, reason }) => `${from}: ${reason}`).join(', ');
    const more = this.#count - this.#last.length;
    return this.#count === 0 ? '' : `refused ${listed}${more > 0 ? `, and ${more} before` : ''}`;
  }
}
