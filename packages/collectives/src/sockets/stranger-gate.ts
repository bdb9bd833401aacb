// Limits the connections that have proved nothing yet: how many come in a second, and how many
// there are at a time. Every door has a gate of its own: those of ranks, of the rendezvous and the
// relay, and those of heartbeat workers.

import type { WsLimits } from './limits.js';

/** The part of a connection that a gate needs. */
export interface GatedConnection {
  once(event: 'close', listener: () => void): unknown;
}

export class StrangerGate<Connection extends GatedConnection> {
  readonly #limits: WsLimits;
  readonly #refuse: (connection: Connection, reason: string) => void;
  /** The connections by name, in the order in which they came. */
  readonly #inside = new Map<string, Connection>();
  /** A token bucket, which fills by maxJoinsPerSecond a second, and holds as many. */
  #tokens: number;
  #filledAt = performance.now();

  /** @param refuse ends a connection, and reports why */
  constructor(limits: WsLimits, refuse: (connection: Connection, reason: string) => void) {
    this.#limits = limits;
    this.#refuse = refuse;
    this.#tokens = limits.maxJoinsPerSecond;
  }

  /**
   * Lets a connection in until it is trusted or closes, or its time is over. Where too many are
   * inside, the oldest has to go: it had the longest time to prove itself, and so an idle one can't
   * keep a rank out.
   */
  enter(name: string, connection: Connection): void {
    const { maxStrangers, proofMs } = this.#limits;
    if (!this.#takeToken()) {
      this.#refuse(connection, 'too many connections a second');
      return;
    }
    if (this.#inside.size >= maxStrangers) {
      const [oldest] = this.#inside;
      this.#inside.delete(oldest![0]);
      this.#refuse(oldest![1], `the oldest of ${maxStrangers} that had proved nothing`);
    }
    this.#inside.set(name, connection);
    const timer = setTimeout(() => {
      if (this.#forget(name, connection)) {
        this.#refuse(connection, `no proof within ${proofMs} ms`);
      }
    }, proofMs);
    connection.once('close', () => {
      clearTimeout(timer);
      this.#forget(name, connection);
    });
  }

  /** Notes that the connection has proved itself, and frees its place. */
  trust(name: string): void {
    this.#inside.delete(name);
  }

  /** All connections that have proved nothing. */
  strangers(): Connection[] {
    return [...this.#inside.values()];
  }

  /**
   * Removes a connection. False where it is not inside any more; another one may have its name by
   * then.
   */
  #forget(name: string, connection: Connection): boolean {
    return this.#inside.get(name) === connection && this.#inside.delete(name);
  }

  #takeToken(): boolean {
    const { maxJoinsPerSecond } = this.#limits;
    const now = performance.now();
    const dripped = ((now - this.#filledAt) / 1000) * maxJoinsPerSecond;
    this.#tokens = Math.min(maxJoinsPerSecond, this.#tokens + dripped);
    this.#filledAt = now;
    if (this.#tokens < 1) {
      return false;
    }
    this.#tokens--;
    return true;
  }
}
