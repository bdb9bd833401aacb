// One rank's way to others: dials addresses until the time to join is over, and proves the secret.

import { JoinError } from '../../errors.js';
import { RENDEZVOUS_TARGET, type Role } from './handshake.js';
import type { HostPort } from './job-options.js';
import type { JoinerOptions } from './joiner-options.js';
import { PROOF_MS, prove } from './prove.js';
import type { WireSocket } from './wire-socket.js';
import { OpenError, type OpenedSocket, type WsPlatform } from './ws-platform.js';

/** Doubled from one try to the next, up to the platform's limit. */
const FIRST_RETRY_MS = 50;

const PAGE_HINT =
  'A page cannot host it: start rank 0 in Node, or serveRendezvous with this page among allowedOrigins.';

export class Dialer {
  /** Of the time to join, by performance.now(). */
  readonly deadline: number;
  readonly #options: JoinerOptions;
  readonly #platform: WsPlatform;
  readonly #hasFailed: () => boolean;
  #rendezvousUrl: string | undefined;

  /** `hasFailed`: the job won't form any more. */
  constructor(options: JoinerOptions, platform: WsPlatform, hasFailed: () => boolean) {
    this.#options = options;
    this.#platform = platform;
    this.#hasFailed = hasFailed;
    this.deadline = performance.now() + options.joinTimeoutMs;
  }

  /** Where the rendezvous was dialed. */
  get rendezvousUrl(): string | undefined {
    return this.#rendezvousUrl;
  }

  open(target: number | 'rendezvous', address: HostPort): Promise<OpenedSocket> {
    return this.dial(target, address, (url) => this.#platform.open(url));
  }

  /** Dials again and again: who is not there yet may come, as after a flood. */
  async dial<T>(
    target: number | 'rendezvous',
    address: HostPort,
    open: (url: string) => Promise<T>,
  ): Promise<T> {
    const url = await this.urlOf(target, address);
    const isRendezvous = target === 'rendezvous';
    if (isRendezvous) {
      this.#rendezvousUrl = url;
    }
    for (let retryMs = FIRST_RETRY_MS; ; retryMs *= 2) {
      try {
        return await open(url);
      } catch (error) {
        const isEarly = error instanceof OpenError && error.isEarly;
        if (!isEarly || this.#hasFailed() || performance.now() > this.deadline) {
          const whom = isRendezvous ? 'rendezvous' : `rank ${target}`;
          const isPage = isRendezvous && this.#platform.listen === undefined;
          const hint = isPage ? ` ${PAGE_HINT}` : '';
          throw this.error(`no ${whom} of the job at ${url} (${messageOf(error)}).${hint}`);
        }
        const leftMs = Math.max(0, this.deadline - performance.now()) + 1;
        const waitMs = Math.min(retryMs, this.#platform.maxRetryMs, leftMs);
        await new Promise((resolve) => setTimeout(resolve, waitMs));
      }
    }
  }

  /** Where the route leads. */
  async urlOf(target: number | 'rendezvous', address: HostPort): Promise<string> {
    const { host, port } = await this.#options.route(target, address);
    const scheme = this.#options.isSecure ? 'wss' : 'ws';
    return `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`;
  }

  async prove(socket: WireSocket, role: Role, target: number): Promise<void> {
    const { rank, worldSize, attempt, secret } = this.#options;
    const hello = { role, rank, target, worldSize, attempt };
    try {
      await prove(socket, { secret, hello, proofMs: PROOF_MS });
    } catch (error) {
      socket.terminate();
      const whom = target === RENDEZVOUS_TARGET ? 'the rendezvous' : `rank ${target}`;
      throw this.error(`refused by ${whom}: ${messageOf(error)}.`);
    }
  }

  error(message: string): JoinError {
    const { rank, worldSize } = this.#options;
    return new JoinError({ rank, worldSize }, message);
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
