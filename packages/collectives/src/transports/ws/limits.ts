// What strangers may cost a listener, and what a proven peer may say in one message.

export interface WsLimits {
  /** Connections that have proved nothing, at a time; further ones are dropped. */
  readonly maxStrangers: number;
  /** Connections a second, over a burst of as many; further ones are dropped. */
  readonly maxJoinsPerSecond: number;
  /** Milliseconds from connection to proof: generous on a loaded machine, short for a flood. */
  readonly proofMs: number;
}

/**
 * `worldSize` ranks come at once, each with a visit to the rendezvous, a link and a heartbeat; twice
 * that leaves room for retries and for a few hundred strangers beside them. A stranger costs about
 * 20 KiB (test/ws-fuzz.test.ts prints it), so these are worth some MiB.
 */
export function limitsFor(worldSize: number, limits: Partial<WsLimits> = {}): WsLimits {
  return {
    maxStrangers: limits.maxStrangers ?? 64 + 4 * worldSize,
    maxJoinsPerSecond: limits.maxJoinsPerSecond ?? 256 + 8 * worldSize,
    proofMs: limits.proofMs ?? 5000,
  };
}

/** A bucket of tokens: `perSecond` drip in, and as many fit. */
export class RateLimit {
  readonly #perSecond: number;
  #tokens: number;
  #filledAt: number;

  constructor(perSecond: number, now: number) {
    this.#perSecond = perSecond;
    this.#tokens = perSecond;
    this.#filledAt = now;
  }

  /** Takes a token, if there is one. */
  take(now: number): boolean {
    const dripped = ((now - this.#filledAt) / 1000) * this.#perSecond;
    this.#tokens = Math.min(this.#perSecond, this.#tokens + dripped);
    this.#filledAt = now;
    if (this.#tokens < 1) {
      return false;
    }
    this.#tokens--;
    return true;
  }
}
