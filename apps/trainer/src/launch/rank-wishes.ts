// What the command asks of a rank apart from it, as the signals of the rank's call.

import type { RankCall, ToRank } from './messages.js';

const SIGNALS = { stop: 'signal', 'wrap-up': 'wrapUp', keep: 'keeping' } as const;

export class RankWishes {
  readonly #asked = {
    signal: new AbortController(),
    wrapUp: new AbortController(),
    keeping: new AbortController(),
  };
  readonly asked: Required<Pick<RankCall, 'signal' | 'wrapUp' | 'keeping'>>;

  constructor() {
    const { signal, wrapUp, keeping } = this.#asked;
    this.asked = { signal: signal.signal, wrapUp: wrapUp.signal, keeping: keeping.signal };
  }

  /** Takes a wish that comes after the rank's work has begun. */
  hear({ type }: Exclude<ToRank, { readonly type: 'start' }>): void {
    this.#asked[SIGNALS[type]].abort();
  }
}
