// One rank's way to others: dials addresses until the time to join is over, and proves the secret.

import { JoinError } from '../../../errors.js';
import { RENDEZVOUS_TARGET, type Role } from '../../../sockets/handshake.js';
import { CutOffError, PROOF_MS, prove } from '../../../sockets/prove.js';
import {
  OpenError,
  type OpenedSocket,
  type SocketPlatform,
} from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HostPort } from './job-options.js';
import type { JoinerOptions } from './joiner-options.js';

/** Doubled from one try to the next, up to the platform's limit. */
const FIRST_RETRY_MS = 50;

const PAGE_HINT =
  'A page cannot host it: start rank 0 in Node, or serveRendezvous with this page among allowedOrigins.';

/** Roles whose connection leads to the rendezvous' process, whoever is wanted behind it. */
const MET_AT_RENDEZVOUS: readonly Role[] = ['rendezvous', 'relay', 'heartbeat relay'];

/** One connection that is wanted. */
export interface Reach {
  readonly role: Role;
  readonly target: number;
  /** Where to dial, before the route. */
  readonly address: HostPort;
  /** A connection that is open already, to be proved first. */
  readonly first?: WireSocket;
  /** Default: a connection of the rank's own thread. */
  open?(url: string): Promise<WireSocket>;
}

export class Dialer {
  /** Of the time to join, by performance.now(). */
  readonly deadline: number;
  readonly #options: JoinerOptions;
  readonly #sockets: SocketPlatform;
  readonly #hasFailed: () => boolean;
  #rendezvousUrl: string | undefined;

  /** `hasFailed`: the job won't form any more. */
  constructor(options: JoinerOptions, sockets: SocketPlatform, hasFailed: () => boolean) {
    this.#options = options;
    this.#sockets = sockets;
    this.#hasFailed = hasFailed;
    this.deadline = performance.now() + options.joinTimeoutMs;
  }

  /** Where the rendezvous was dialed. */
  get rendezvousUrl(): string | undefined {
    return this.#rendezvousUrl;
  }

  /** A connection of this rank's own thread, which has proved nothing yet. */
  open(target: number | 'rendezvous', address: HostPort): Promise<OpenedSocket> {
    return this.#dial(target, address, (url) => this.#sockets.open(url));
  }

  /**
   * A proven connection. Where it is cut off before the peer has judged it (among many strangers the
   * oldest goes, and may be this one) it dials and proves again, until the time to join is over.
   */
  async reach({
    role,
    target,
    address,
    first,
    open = this.#openSocket,
  }: Reach): Promise<WireSocket> {
    const whom = MET_AT_RENDEZVOUS.includes(role) ? 'rendezvous' : target;
    let retryMs = FIRST_RETRY_MS;
    for (let socket = first; ; socket = undefined) {
      socket ??= await this.#dial(whom, address, open);
      try {
        await this.prove(socket, role, target);
        return socket;
      } catch (error) {
        const isOver = this.#hasFailed() || performance.now() > this.deadline;
        if (isOver || !(error instanceof CutOffError)) {
          const peer = target === RENDEZVOUS_TARGET ? 'the rendezvous' : `rank ${target}`;
          throw this.error(`refused by ${peer}: ${messageOf(error)}.`);
        }
        await this.#pause(retryMs);
        retryMs *= 2;
      }
    }
  }

  readonly #openSocket = async (url: string) => (await this.#sockets.open(url)).socket;

  /** Dials again and again: who is not there yet may come, as after a flood. */
  async #dial<T>(
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
          const isPage = isRendezvous && this.#sockets.listen === undefined;
          const hint = isPage ? ` ${PAGE_HINT}` : '';
          throw this.error(`no ${whom} of the job at ${url} (${messageOf(error)}).${hint}`);
        }
        await this.#pause(retryMs);
      }
    }
  }

  /** Between two tries: so long, up to the platform's limit and to the end of the time to join. */
  async #pause(retryMs: number): Promise<void> {
    const leftMs = Math.max(0, this.deadline - performance.now()) + 1;
    const waitMs = Math.min(retryMs, this.#sockets.maxRetryMs, leftMs);
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }

  /** Where the route leads. */
  async urlOf(target: number | 'rendezvous', address: HostPort): Promise<string> {
    const { host, port } = await this.#options.route(target, address);
    const scheme = this.#options.schemeTo(host);
    return `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`;
  }

  /** On a socket that is open; it is dropped where this rejects, with the peer's reason. */
  async prove(socket: WireSocket, role: Role, target: number): Promise<void> {
    const { rank, worldSize, attempt, run, secret } = this.#options;
    const hello = { role, rank, target, worldSize, attempt, run };
    try {
      await prove(socket, { secret, hello, proofMs: PROOF_MS });
    } catch (error) {
      socket.terminate();
      throw error;
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
