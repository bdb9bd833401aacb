// What may come in before it has proved anything: connections a second, and at a time. Every listener
// has one gate: ranks, the rendezvous, the relay and the store in `Acceptor`, heartbeat workers in
// theirs. A worker is started from text, so this function refers to nothing outside itself.

import type { WsLimits } from './limits.js';

/** A connection, as far as the gate knows it. */
export interface GatedConnection {
  once(event: 'close', listener: () => void): unknown;
}

export interface StrangerGate<Connection extends GatedConnection> {
  /**
   * Lets a connection in until it is trusted, closes, or its time is over. Where too many are
   * inside, the oldest has to go: it had the longest time to prove itself, and who idles can't keep
   * a rank out.
   */
  enter(name: string, connection: Connection): void;
  /** It has proved itself: its place is free. */
  trust(name: string): void;
  /** All that have proved nothing. */
  strangers(): Connection[];
}

/** `refuse` ends a connection, and tells why. */
export function createStrangerGate<Connection extends GatedConnection>(
  { maxStrangers, maxJoinsPerSecond, proofMs }: WsLimits,
  refuse: (connection: Connection, reason: string) => void,
): StrangerGate<Connection> {
  /** In the order in which they came. */
  const inside = new Map<string, Connection>();
  // A bucket of tokens: so many drip in a second, and as many fit.
  let tokens = maxJoinsPerSecond;
  let filledAt = performance.now();
  const takeToken = () => {
    const now = performance.now();
    tokens = Math.min(maxJoinsPerSecond, tokens + ((now - filledAt) / 1000) * maxJoinsPerSecond);
    filledAt = now;
    if (tokens < 1) {
      return false;
    }
    tokens--;
    return true;
  };
  return {
    enter(name, connection) {
      if (!takeToken()) {
        refuse(connection, 'too many connections a second');
        return;
      }
      if (inside.size >= maxStrangers) {
        const [oldest] = inside;
        inside.delete(oldest![0]);
        refuse(oldest![1], `the oldest of ${maxStrangers} that had proved nothing`);
      }
      inside.set(name, connection);
      const timer = setTimeout(() => {
        if (inside.get(name) === connection) {
          inside.delete(name);
          refuse(connection, `no proof within ${proofMs} ms`);
        }
      }, proofMs);
      connection.once('close', () => {
        clearTimeout(timer);
        if (inside.get(name) === connection) {
          inside.delete(name);
        }
      });
    },
    trust(name) {
      inside.delete(name);
    },
    strangers: () => [...inside.values()],
  };
}
