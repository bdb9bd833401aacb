// What may come in before it has proved anything: connections a second, and at a time. Every door
// has a gate of its own: those of ranks, of the rendezvous, the relay and the store, and those of
// heartbeat workers.

import type { WsLimits } from './limits.js';

/** What a gate knows of a connection. */
export interface GatedConnection {
  once(event: 'close', listener: () => void): unknown;
}

export class StrangerGate<Connection extends GatedConnection> {
  readonly #limits: WsLimits;
  readonly #refuse: (connection: Connection, reason: string) => void;
  /** Connections by name, in the order in which they came. */
  readonly #inside = new Map<string, Connection>();
  /** A bucket into which so many tokens drip in a second, and which holds as many. */
  #tokens: number;
  #filledAt = performance.now();

  /** `refuse` ends a connection, and tells why. */
  constructor(limits: WsLimits, refuse: (connection: Connection, reason: string) => void) {
    this.#limits = limits;
    this.#refuse = refuse;
    this.#tokens = limits.maxJoinsPerSecond;
  }

  /**
   * Lets a connection in until it is trusted, closes, or its time is over. Where too many are
   * inside, the oldest has to go: it had the longest time to prove itself, and who idles can't keep
   * a rank out.
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

  /** The connection has proved itself: its place is free. */
  trust(name: string): void {
    this.#inside.delete(name);
  }

  /** All that have proved nothing. */
  strangers(): Connection[] {
    return [...this.#inside.values()];
  }

  /** False where it is not inside any more: another connection may have its name by now. */
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
