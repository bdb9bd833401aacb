// Limits the connections that are not authenticated yet: how many come in a second, and how many
// there are at a time, of all and of each address. Every listener has a limiter of its own: those
// of ranks, of the rendezvous and the relay, and those of heartbeat workers.

import type { WsLimits } from './limits.js';
import { TokenBucket } from './token-bucket.js';

/** The part of a connection that a limiter needs. */
export interface LimitedConnection {
  once(event: 'close', listener: () => void): unknown;
}

/** Ends a connection, and reports why. */
type Refuse<Connection> = (connection: Connection, name: string, reason: string) => void;

export class UnauthenticatedLimiter<Connection extends LimitedConnection> {
  readonly #limits: WsLimits;
  readonly #refuse: Refuse<Connection>;
  /** The connections of each address by their names, in the order in which they came. */
  readonly #inside = new Map<string, Map<string, Connection>>();
  #numInside = 0;
  readonly #tokens: TokenBucket;
  readonly #tokensOf = new Map<string, TokenBucket>();

  constructor(limits: WsLimits, refuse: Refuse<Connection>) {
    this.#limits = limits;
    this.#refuse = refuse;
    this.#tokens = new TokenBucket(limits.maxJoinsPerSecond);
  }

  /**
   * Lets a connection in until it is trusted or closes, or its time is over. Where too many are
   * inside, the oldest of the address that has the most of them has to go: it had the longest time
   * to authenticate, and so neither idle ones nor one host that floods can keep a rank out, however
   * slow its way is. Returns whether it is in.
   */
  enter(name: string, host: string, connection: Connection): boolean {
    const { maxStrangers, proofMs } = this.#limits;
    const address = networkOf(host);
    if (!this.#takeToken(address)) {
      this.#refuse(connection, name, 'too many connections a second');
      return false;
    }
    if (this.#numInside >= maxStrangers) {
      const [most] = [...this.#inside].sort(([, a], [, b]) => b.size - a.size);
      const [oldest, itsConnection] = most![1].entries().next().value!;
      this.#forget(most![0], oldest, itsConnection);
      this.#refuse(itsConnection, oldest, `the oldest of ${maxStrangers} that had proved nothing`);
    }
    const neighbours = this.#inside.get(address) ?? new Map<string, Connection>();
    this.#inside.set(address, neighbours.set(name, connection));
    this.#numInside++;
    const timer = setTimeout(() => {
      if (this.#forget(address, name, connection)) {
        this.#refuse(connection, name, `no proof within ${proofMs} ms`);
      }
    }, proofMs);
    connection.once('close', () => {
      clearTimeout(timer);
      this.#forget(address, name, connection);
    });
    return true;
  }

  /** Notes that the connection has authenticated itself, and frees its place. */
  trust(name: string): void {
    for (const [address, connections] of this.#inside) {
      const connection = connections.get(name);
      if (connection !== undefined) {
        this.#forget(address, name, connection);
      }
    }
  }

  /** All connections that are not authenticated. */
  unauthenticated(): Connection[] {
    return [...this.#inside.values()].flatMap((connections) => [...connections.values()]);
  }

  /**
   * Removes a connection. False where it is not inside any more; another one may have its name by
   * then.
   */
  #forget(address: string, name: string, connection: Connection): boolean {
    const connections = this.#inside.get(address);
    if (connections?.get(name) !== connection) {
      return false;
    }
    connections.delete(name);
    this.#numInside--;
    if (connections.size === 0) {
      this.#inside.delete(address);
    }
    return true;
  }

  /** Takes one token of all and one of the address, which has half as many. */
  #takeToken(address: string): boolean {
    if (this.#tokensOf.size >= MAX_ADDRESSES) {
      for (const [other, bucket] of this.#tokensOf) {
        if (bucket.isFull()) {
          this.#tokensOf.delete(other);
        }
      }
    }
    const half = Math.ceil(this.#limits.maxJoinsPerSecond / 2);
    const own = this.#tokensOf.get(address) ?? new TokenBucket(half);
    this.#tokensOf.set(address, own);
    return own.take() && this.#tokens.take();
  }
}

/** The number of addresses from which those whose buckets are full again are forgotten. */
const MAX_ADDRESSES = 256;

/**
 * The address of a connection as a limiter counts it. One host may have all addresses of an IPv6
 * network of 64 bits, so these count as one.
 */
function networkOf(host: string): string {
  if (!host.includes(':')) {
    return host;
  }
  const [before, after] = host.split('::') as [string, string?];
  const groups = before.split(':');
  const rest = after === undefined ? [] : after.split(':');
  const zeros = Array<string>(Math.max(0, 8 - groups.length - rest.length)).fill('0');
  return [...groups, ...zeros, ...rest].slice(0, 4).join(':');
}
