// One rank's way to other processes: it dials addresses until the time to join is over, and
// authenticates there.

import { JoinError } from '../../../errors.js';
import { authenticateToListener, CutOffError } from '../../../sockets/authenticate.js';
import { RENDEZVOUS_TARGET, type Role } from '../../../sockets/handshake.js';
import { addressOfName } from '../../../sockets/is-loopback.js';
import {
  OpenError,
  type OpenedSocket,
  type SocketPlatform,
} from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HostPort } from './job-options.js';
import type { JoinerOptions } from './joiner-options.js';

/** The first wait between two tries. It is doubled from try to try, up to the platform's limit. */
const FIRST_RETRY_MS = 50;

/**
 * The most milliseconds for one answer. A try that was too short for a busy machine is followed by
 * one that is twice as long.
 */
const MAX_LIMIT_MS = 60_000;

/**
 * The connections that a rank makes at a time. With all of them at once, 64 ranks on a busy machine
 * would wait for thousands of answers, and for none of them long enough.
 */
const MAX_AT_ONCE = 8;

const PAGE_HINT =
  'A page cannot host it: start rank 0 in Node, or serveRendezvous with this page among allowedOrigins.';

/**
 * The roles whose connection leads to the rendezvous' process, whichever rank is wanted behind it.
 */
const MET_AT_RENDEZVOUS: readonly Role[] = ['rendezvous', 'relay', 'heartbeat relay'];

/** A connection that is wanted. */
export interface Reach {
  readonly role: Role;
  readonly target: number;
  /** The address to dial, unless the option `route` leads elsewhere. */
  readonly address: HostPort;
  /** A connection that is open already, on which to authenticate first. */
  readonly first?: WireSocket;
  /** Opens a connection. Default: the rank's own thread does. */
  open?(url: string, limitMs: number): Promise<WireSocket>;
}

export interface AuthenticationWish extends Pick<Reach, 'role' | 'target'> {
  /** The milliseconds for each answer. Default: the option `proofMs`. */
  readonly limitMs?: number;
}

export class Dialer {
  /** The time at which joining must have succeeded, by the clock. */
  readonly deadline: number;
  readonly #options: JoinerOptions;
  readonly #sockets: SocketPlatform;
  readonly #hasFailed: () => boolean;
  #rendezvousUrl: string | undefined;
  #numReaching = 0;
  readonly #waiting: (() => void)[] = [];

  /** @param hasFailed whether the job won't form any more */
  constructor(options: JoinerOptions, sockets: SocketPlatform, hasFailed: () => boolean) {
    this.#options = options;
    this.#sockets = sockets;
    this.#hasFailed = hasFailed;
    this.deadline = options.clock.now() + options.joinTimeoutMs;
  }

  /** The URL by which the rendezvous was dialed. */
  get rendezvousUrl(): string | undefined {
    return this.#rendezvousUrl;
  }

  /** Opens a connection of this rank's own thread, which is not authenticated yet. */
  open(target: number | 'rendezvous', address: HostPort): Promise<OpenedSocket> {
    return this.#dial(target, address, (url, limitMs) => this.#sockets.open(url, limitMs));
  }

  /**
   * Resolves with an authenticated connection. Among many strangers the listener drops the oldest,
   * which may be this one before the peer has judged it. Then it dials and authenticates again,
   * until the time to join is over.
   */
  async reach(wanted: Reach): Promise<WireSocket> {
    if (this.#numReaching === MAX_AT_ONCE) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    } else {
      this.#numReaching++;
    }
    try {
      return await this.#reach(wanted);
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) {
        this.#numReaching--;
      } else {
        next(); // It takes this one's place.
      }
    }
  }

  async #reach({
    role,
    target,
    address,
    first,
    open = this.#openSocket,
  }: Reach): Promise<WireSocket> {
    const whom = MET_AT_RENDEZVOUS.includes(role) ? 'rendezvous' : target;
    let retryMs = FIRST_RETRY_MS;
    let limitMs = this.#options.proofMs;
    for (let socket = first; ; socket = undefined) {
      socket ??= await this.#dial(whom, address, open, limitMs);
      try {
        await this.authenticate(socket, { role, target, limitMs });
        return socket;
      } catch (error) {
        const isOver = this.#hasFailed() || this.#isLate();
        if (isOver || !(error instanceof CutOffError)) {
          const peer = target === RENDEZVOUS_TARGET ? 'the rendezvous' : `rank ${target}`;
          throw this.error(`refused by ${peer}: ${messageOf(error)}.`);
        }
        await this.#pause(retryMs);
        retryMs *= 2;
        limitMs = this.#longer(limitMs);
      }
    }
  }

  readonly #openSocket = async (url: string, limitMs: number) =>
    (await this.#sockets.open(url, limitMs)).socket;

  /** Dials again and again, because a listener that is not there yet may come. */
  async #dial<T>(
    target: number | 'rendezvous',
    address: HostPort,
    open: (url: string, limitMs: number) => Promise<T>,
    firstLimitMs = this.#options.proofMs,
  ): Promise<T> {
    const url = await this.urlOf(target, address);
    const isRendezvous = target === 'rendezvous';
    if (isRendezvous) {
      this.#rendezvousUrl = url;
    }
    let limitMs = firstLimitMs;
    let before: unknown;
    for (let retryMs = FIRST_RETRY_MS; ; retryMs *= 2) {
      try {
        return await open(url, limitMs);
      } catch (error) {
        const isEarly = error instanceof OpenError && error.isEarly;
        if (!isEarly || this.#hasFailed() || this.#isLate()) {
          const whom = isRendezvous ? 'rendezvous' : `rank ${target}`;
          const isPage = isRendezvous && this.#sockets.listen === undefined;
          const hint = isPage ? ` ${PAGE_HINT}` : '';
          // The try at the end of the time to join has a millisecond. The one before it says why.
          const why = isEarly ? (before ?? error) : error;
          throw this.error(`no ${whom} of the job at ${url} (${messageOf(why)}).${hint}`);
        }
        before = error;
        await this.#pause(retryMs);
        limitMs = this.#longer(limitMs);
      }
    }
  }

  /**
   * Waits between two tries, at most as long as the platform's limit and the time to join allow.
   */
  async #pause(retryMs: number): Promise<void> {
    const { clock } = this.#options;
    const leftMs = Math.max(0, this.deadline - clock.now()) + 1;
    const waitMs = Math.min(retryMs, this.#sockets.maxRetryMs, leftMs);
    await new Promise<void>((resolve) => clock.setTimer(waitMs, resolve));
  }

  #isLate(): boolean {
    return this.#options.clock.now() >= this.deadline;
  }

  /** The limit of a further try, which ends with the time to join. */
  #longer(limitMs: number): number {
    const leftMs = Math.max(1, this.deadline - this.#options.clock.now());
    return Math.min(longer(limitMs), leftMs);
  }

  /** The URL of the address that the route leads to. */
  async urlOf(target: number | 'rendezvous', address: HostPort): Promise<string> {
    const { host: name, port } = await this.#options.route(target, address);
    const host = addressOfName(name);
    const scheme = this.#options.schemeTo(host);
    return `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`;
  }

  /**
   * Authenticates this rank on an open socket. Where it rejects, with the peer's reason, the socket
   * has been dropped.
   */
  async authenticate(
    socket: WireSocket,
    { role, target, limitMs = this.#options.proofMs }: AuthenticationWish,
  ): Promise<void> {
    const { rank, worldSize, attempt, run, secret, clock } = this.#options;
    const hello = { role, rank, target, worldSize, attempt, run };
    try {
      await authenticateToListener(socket, { secret, hello, proofMs: limitMs, clock });
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

function longer(limitMs: number): number {
  return Math.min(2 * limitMs, MAX_LIMIT_MS);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
