// Proxies for the links of a whole job, made as ranks dial each other: one for each pair of ranks
// and direction of dialling. Give `connectWs` of each rank its `route`.

import type { LinkShape } from './delay-line.js';
import { type ProxyAddress, TcpProxy } from './tcp-proxy.js';

/** The shape of all links of a proxied job, and the address that its proxies listen on. */
export interface ProxiedLinksOptions extends LinkShape {
  /** Default: 127.0.0.1. */
  readonly host?: string;
}

/**
 * Proxies for the links of a whole job, made as ranks dial each other, one for each pair of ranks
 * and direction of dialling. Each rank's `connectWs` is given its `route`. Closing it cuts all
 * links.
 */
export class ProxiedLinks implements AsyncDisposable {
  readonly #options: ProxiedLinksOptions;
  readonly #proxies = new Map<string, { ranks: readonly unknown[]; proxy: Promise<TcpProxy> }>();

  constructor(options: ProxiedLinksOptions = {}) {
    this.#options = options;
  }

  /** The `route` option of a rank's connectWs: the address to dial instead. */
  async route<T>(
    rank: number,
    target: T,
    address: ProxyAddress,
  ): Promise<{ host: string; port: number }> {
    const key = `${rank} ${target} ${address.host}:${address.port}`;
    let made = this.#proxies.get(key);
    if (made === undefined) {
      const proxy = TcpProxy.listen({
        ...this.#options,
        target: address,
        seed: this.#proxies.size + 1,
      });
      made = { ranks: [rank, target], proxy };
      this.#proxies.set(key, made);
    }
    return (await made.proxy).address;
  }

  /** The proxies of the links between a rank and any other, or between it and `peer`. */
  async of(rank: number, peer?: number): Promise<TcpProxy[]> {
    const chosen = [...this.#proxies.values()].filter(
      ({ ranks }) => ranks.includes(rank) && (peer === undefined || ranks.includes(peer)),
    );
    return Promise.all(chosen.map(({ proxy }) => proxy));
  }

  /** All proxies. */
  async all(): Promise<TcpProxy[]> {
    return Promise.all([...this.#proxies.values()].map(({ proxy }) => proxy));
  }

  async close(): Promise<void> {
    await Promise.all((await this.all()).map((proxy) => proxy.close()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
