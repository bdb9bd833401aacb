// One rank's way into a job: it listens where it can, meets the others at the rendezvous, and links to
// each of them. Runs in Node and in pages; the platform opens the sockets.

import type { Endpoint } from '../../endpoint.js';
import { JoinError } from '../../errors.js';
import { setLongTimer } from '../../long-timer.js';
import { type Hello, RENDEZVOUS_TARGET, type Role } from './handshake.js';
import type { HostPort, Route } from './job-options.js';
import { linkPart } from './link-plan.js';
import { Meeting } from './meeting.js';
import { PROOF_MS, prove } from './prove.js';
import { Relay } from './relay.js';
import { Rendezvous } from './rendezvous.js';
import { hostMember } from './rendezvous-host.js';
import type { PeerAddress } from './rendezvous-messages.js';
import type { WireSocket } from './wire-socket.js';
import { WsLink } from './ws-link.js';
import {
  type HeartbeatSender,
  OpenError,
  type OpenedSocket,
  type WsListener,
  type WsPlatform,
} from './ws-platform.js';
import type { WsTransport } from './ws-transport.js';

export interface JoinerOptions {
  readonly rank: number;
  readonly worldSize: number;
  readonly attempt: number;
  readonly secret: string;
  /** Where the rendezvous is; with `isHosted`, where this rank listens for all. */
  readonly rendezvous: HostPort & { readonly isHosted: boolean };
  readonly isSecure: boolean;
  /** False: this rank can't, or shall not. */
  readonly listen: ListenWish | false;
  readonly joinTimeoutMs: number;
  readonly onListen: ((port: number) => void) | undefined;
  readonly route: Route;
  readonly heartbeatMs: number;
  /** Silence after which a peer counts as lost: with a heartbeat worker, and without. */
  readonly silenceMs: number;
  readonly linkSilenceMs: number;
  /** Whom its listener turned away, in words. */
  readonly describeRefusals?: (() => string) | undefined;
}

/** Where a rank that doesn't host the rendezvous listens. */
export interface ListenWish {
  /** Default: the interface by which it reaches the rendezvous. */
  readonly host?: string;
  /** Default: a free one. */
  readonly port?: number;
  /** Where others reach it, if not there: a proxy, a published port of a container. */
  readonly advertise?: HostPort;
}

/** Doubled from one try to the next, up to the platform's limit. */
const FIRST_RETRY_MS = 50;
const LOOPBACK = '127.0.0.1';

const PAGE_HINT =
  'A page cannot host it: start rank 0 in Node, or serveRendezvous with this page among allowedOrigins.';

/** A loaded machine keeps a heartbeat waiting for longer than less. */
const MIN_SILENCE_MS = 100;

/** Throws JoinError where `silenceMs` would take every peer for lost. */
export function checkSilence(options: {
  readonly rank: number;
  readonly worldSize: number;
  readonly silenceMs?: number;
}): void {
  const { rank, worldSize, silenceMs = MIN_SILENCE_MS } = options;
  if (!(silenceMs >= MIN_SILENCE_MS)) {
    const what = `expected silenceMs of at least ${MIN_SILENCE_MS}, got ${String(silenceMs)}`;
    throw new JoinError({ rank, worldSize }, `${what}.`);
  }
}

export class Joiner {
  readonly #options: JoinerOptions;
  readonly #platform: WsPlatform;
  readonly #endpoint: Endpoint;
  readonly #transport: WsTransport;
  readonly #deadline: number;
  /** Told when another connection of a peer has come. */
  readonly #arrived = new Set<() => void>();
  #listener: WsListener | undefined;
  #rendezvous: Rendezvous | undefined;
  #relay: Relay | undefined;
  #meeting: Meeting | undefined;
  #heartbeats: HeartbeatSender | undefined;
  /** Where the rendezvous was dialed. */
  #rendezvousUrl: string | undefined;

  constructor(
    options: JoinerOptions,
    parts: {
      readonly platform: WsPlatform;
      readonly endpoint: Endpoint;
      readonly transport: WsTransport;
    },
  ) {
    this.#options = options;
    this.#platform = parts.platform;
    this.#endpoint = parts.endpoint;
    this.#transport = parts.transport;
    this.#deadline = performance.now() + options.joinTimeoutMs;
  }

  /** Resolves when every rank is linked to every other. Rejects with JoinError, on all ranks that came. */
  async join(): Promise<void> {
    if (this.#options.worldSize === 1) {
      return;
    }
    const lateness = new AbortController();
    try {
      const formed = this.#form();
      formed.catch(() => {}); // where one of the others rejects first
      await Promise.race([formed, this.#rejectWhenLate(lateness.signal), this.#rejectOnFailure()]);
    } catch (error) {
      const reason = messageOf(error);
      this.#meeting?.say({ type: 'failed', reason });
      this.#endpoint.fail({ kind: 'aborted', origin: this.#options.rank, reason });
      throw error instanceof JoinError ? error : this.#joinError(`${reason}.`);
    } finally {
      lateness.abort();
      this.#listener?.close();
      this.#relay?.close();
    }
  }

  async #form(): Promise<void> {
    const { rank, worldSize, rendezvous, heartbeatMs, silenceMs, linkSilenceMs } = this.#options;
    // Before all else: it takes a moment to start.
    this.#heartbeats = this.#platform.startHeartbeats?.(heartbeatMs);
    if (this.#heartbeats !== undefined) {
      this.#transport.addHeartbeats(this.#heartbeats);
    }
    this.#meeting = rendezvous.isHosted ? await this.#host() : await this.#visit();
    const addresses = await this.#meeting.table;
    const peers = Array.from({ length: worldSize }, (_, r) => r).filter((r) => r !== rank);
    await Promise.all(
      peers.flatMap((peer) => [
        this.#linkTo(peer, addresses),
        this.#beatTo(peer, addresses[peer]!),
      ]),
    );
    this.#meeting.say({ type: 'linked' });
    await this.#meeting.formed;
    for (const peer of peers) {
      this.#transport.watch(peer, {
        silenceMs: this.#transport.hasHeart(peer) ? silenceMs : linkSilenceMs,
        saysAlive: this.#heartbeats === undefined || addresses[peer]!.port === 0,
      });
    }
  }

  async #host(): Promise<Meeting> {
    const { rank, worldSize, joinTimeoutMs, rendezvous, onListen } = this.#options;
    await this.#listen(rendezvous.host, rendezvous.port);
    const circumstances = () => this.#listenedOn();
    this.#rendezvous = new Rendezvous({ worldSize, joinTimeoutMs, circumstances });
    this.#relay = new Relay();
    const meeting = Meeting.hosted(this.#rendezvous, rank);
    onListen?.(this.#listener!.port);
    this.#sayHere(meeting, { host: null, port: this.#listener!.port });
    return meeting;
  }

  async #visit(): Promise<Meeting> {
    const { rendezvous, listen } = this.#options;
    const opened = await this.#open('rendezvous', rendezvous);
    if (listen !== false && this.#platform.listen !== undefined) {
      try {
        await this.#listen(listen.host ?? opened.localHost ?? LOOPBACK, listen.port ?? 0);
      } catch (error) {
        opened.socket.terminate();
        throw error;
      }
    }
    await this.#prove(opened.socket, 'rendezvous', RENDEZVOUS_TARGET);
    const meeting = Meeting.visited(opened.socket, this.#options.worldSize);
    const wish = listen === false ? undefined : listen;
    this.#sayHere(meeting, wish?.advertise ?? { host: null, port: this.#listener?.port ?? 0 });
    return meeting;
  }

  #sayHere(meeting: Meeting, where: { readonly host: string | null; readonly port: number }): void {
    const beats = this.#heartbeats !== undefined;
    meeting.say({ type: 'here', address: { ...where, beats } });
  }

  /** Resolves when the link is there, whoever opens it. */
  async #linkTo(peer: number, addresses: readonly PeerAddress[]): Promise<void> {
    const part = linkPart(this.#options.rank, peer, addresses);
    if (part === 'await') {
      await this.#until(() => this.#transport.link(peer) !== undefined);
      return;
    }
    const { socket } =
      part === 'relay'
        ? await this.#open('rendezvous', this.#options.rendezvous)
        : await this.#open(peer, this.#addressOf(addresses[peer]!));
    await this.#prove(socket, part === 'relay' ? 'relay' : 'link', peer);
    this.#transport.addLink(new WsLink(socket, peer, this.#transport));
  }

  /** Resolves when heartbeats go both ways, as far as either side can be called. */
  async #beatTo(peer: number, address: PeerAddress): Promise<void> {
    if (this.#heartbeats !== undefined && address.port !== 0) {
      const heartbeats = this.#heartbeats;
      const socket = await this.#dial(peer, this.#addressOf(address), (url) =>
        heartbeats.open(url),
      );
      await this.#prove(socket, 'heartbeat', peer);
      heartbeats.beat(socket);
    }
    if (this.#listener !== undefined && address.beats) {
      await this.#until(() => this.#transport.hasHeart(peer));
    }
  }

  #addressOf({ host, port }: PeerAddress): HostPort {
    return host === null ? this.#options.rendezvous : { host, port };
  }

  /** Resolves when `isThere`, which is asked again whenever a peer has come. */
  async #until(isThere: () => boolean): Promise<void> {
    while (!isThere()) {
      await new Promise<void>((resolve) => this.#arrived.add(resolve));
    }
  }

  async #listen(host: string, port: number): Promise<void> {
    try {
      this.#listener = await this.#platform.listen!({
        host,
        port,
        refusalOf: (hello) => this.#refusalOf(hello),
        onPeer: (hello, socket, from) => this.#onPeer(hello, socket, from),
      });
    } catch (error) {
      throw this.#joinError(messageOf(error));
    }
  }

  #listenedOn(): string {
    const { rendezvous, describeRefusals } = this.#options;
    const refusals = describeRefusals?.() || 'nobody was refused';
    return `it listened on ${rendezvous.host}:${this.#listener?.port}; ${refusals}`;
  }

  #refusalOf(hello: Hello): string | undefined {
    const { rank, worldSize, attempt } = this.#options;
    const refusal = refusalOfJob(hello, { worldSize, attempt });
    if (refusal !== undefined) {
      return refusal;
    }
    if (hello.role === 'rendezvous') {
      return this.#rendezvous === undefined
        ? 'no rendezvous here'
        : this.#rendezvous.refusalOf(hello.rank);
    }
    if (hello.role === 'relay') {
      return this.#relay === undefined ? 'no relay here' : this.#relay.refusalOf(hello);
    }
    if (hello.role === 'store') {
      return 'no store here';
    }
    if (hello.target !== rank) {
      return `this is rank ${rank}, not ${hello.target}`;
    }
    return this.#isThere(hello) ? `rank ${hello.rank} is here already` : undefined;
  }

  #isThere({ role, rank }: Hello): boolean {
    const isSelf = rank === this.#options.rank;
    return (
      isSelf ||
      (role === 'link' ? this.#transport.link(rank) !== undefined : this.#transport.hasHeart(rank))
    );
  }

  #onPeer(hello: Hello, socket: WireSocket, from: string): void {
    if (hello.role === 'rendezvous') {
      hostMember(this.#rendezvous!, hello.rank, socket, from);
      return;
    }
    if (hello.role === 'relay') {
      this.#relay!.onPeer(hello, socket);
      return;
    }
    if (this.#isThere(hello)) {
      socket.terminate(); // the same rank twice at once
    } else if (hello.role === 'link') {
      this.#transport.addLink(new WsLink(socket, hello.rank, this.#transport));
    } else {
      this.#transport.addHeart(hello.rank, socket);
    }
    for (const resolve of this.#arrived) {
      resolve();
    }
    this.#arrived.clear();
  }

  #open(target: number | 'rendezvous', address: HostPort): Promise<OpenedSocket> {
    return this.#dial(target, address, (url) => this.#platform.open(url));
  }

  /** Dials until the time to join is over: who is not there yet may come, as after a flood. */
  async #dial<T>(
    target: number | 'rendezvous',
    address: HostPort,
    open: (url: string) => Promise<T>,
  ): Promise<T> {
    const url = this.#urlOf(await this.#options.route(target, address));
    const isRendezvous = target === 'rendezvous';
    if (isRendezvous) {
      this.#rendezvousUrl = url;
    }
    for (let retryMs = FIRST_RETRY_MS; ; retryMs *= 2) {
      try {
        return await open(url);
      } catch (error) {
        const isEarly = error instanceof OpenError && error.isEarly;
        const isOver = this.#endpoint.failure !== undefined || performance.now() > this.#deadline;
        if (!isEarly || isOver) {
          const whom = isRendezvous ? 'rendezvous' : `rank ${target}`;
          const isPage = isRendezvous && this.#platform.listen === undefined;
          const hint = isPage ? ` ${PAGE_HINT}` : '';
          throw this.#joinError(`no ${whom} of the job at ${url} (${messageOf(error)}).${hint}`);
        }
        const leftMs = Math.max(0, this.#deadline - performance.now()) + 1;
        const waitMs = Math.min(retryMs, this.#platform.maxRetryMs, leftMs);
        await new Promise((resolve) => setTimeout(resolve, waitMs));
      }
    }
  }

  async #prove(socket: WireSocket, role: Role, target: number): Promise<void> {
    const { rank, worldSize, attempt, secret } = this.#options;
    const hello = { role, rank, target, worldSize, attempt };
    try {
      await prove(socket, { secret, hello, proofMs: PROOF_MS });
    } catch (error) {
      socket.terminate();
      const whom = target === RENDEZVOUS_TARGET ? 'the rendezvous' : `rank ${target}`;
      throw this.#joinError(`refused by ${whom}: ${messageOf(error)}.`);
    }
  }

  #urlOf({ host, port }: HostPort): string {
    const scheme = this.#options.isSecure ? 'wss' : 'ws';
    return `${scheme}://${host.includes(':') ? `[${host}]` : host}:${port}`;
  }

  async #rejectWhenLate(signal: AbortSignal): Promise<never> {
    // The rendezvous has the same limit and knows who is missing: it speaks first.
    const graceMs = 1000;
    await new Promise<void>((resolve) => {
      const cancel = setLongTimer(this.#deadline - performance.now() + graceMs, resolve);
      signal.addEventListener('abort', cancel);
    });
    const { joinTimeoutMs } = this.#options;
    throw this.#joinError(
      `the job was not complete within ${joinTimeoutMs} ms: ${this.#whatWasMissing()}.`,
    );
  }

  #whatWasMissing(): string {
    if (this.#options.rendezvous.isHosted) {
      return this.#listenedOn();
    }
    const url = this.#rendezvousUrl ?? 'an address that the option route has not given';
    return this.#meeting === undefined
      ? `the rendezvous did not answer at ${url}, and something else may listen there`
      : `the rendezvous at ${url} has not said that all ranks are linked`;
  }

  async #rejectOnFailure(): Promise<never> {
    const failure = await this.#endpoint.failed;
    const what = failure.kind === 'peer-lost' ? `peer ${failure.origin} lost` : failure.kind;
    throw this.#joinError(`rank ${failure.origin}: ${what} (${failure.reason})`);
  }

  #joinError(message: string): JoinError {
    const { rank, worldSize } = this.#options;
    return new JoinError({ rank, worldSize }, message);
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Why a peer of another job, attempt or shape is turned away. */
export function refusalOfJob(
  hello: Hello,
  job: { readonly worldSize: number; readonly attempt: number },
): string | undefined {
  if (hello.worldSize !== job.worldSize) {
    return `world size is ${job.worldSize} here, not ${hello.worldSize}`;
  }
  if (hello.attempt !== job.attempt) {
    return `this is attempt ${job.attempt}, not ${hello.attempt}`;
  }
  return hello.rank < job.worldSize ? undefined : `there is no rank ${hello.rank}`;
}
