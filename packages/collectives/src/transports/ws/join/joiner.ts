// One rank's way into a job: it listens where it can, meets the others at the rendezvous, and links
// to each of them. It runs in Node and in pages; the platform opens the sockets.

import type { Endpoint } from '../../../endpoint/endpoint.js';
import { JoinError } from '../../../errors.js';
import { type Hello, RENDEZVOUS_TARGET } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import type { SocketListener } from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { setLimit } from '../../../time-limit.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import type { WsTransport } from '../link/ws-transport.js';
import type { WsPlatform } from '../wire/ws-platform.js';
import { Dialer, messageOf } from './dialer.js';
import { type JoinerOptions, refusalOfJob } from './joiner-options.js';
import { PeerLinks } from './peer-links.js';
import { Relay } from './relay.js';
import { Rendezvous } from './rendezvous.js';
import { RendezvousClient } from './rendezvous-client.js';
import { hostMember } from './rendezvous-host.js';

export class Joiner {
  readonly #options: JoinerOptions;
  readonly #platform: WsPlatform;
  readonly #endpoint: Endpoint;
  readonly #transport: WsTransport;
  readonly #dialer: Dialer;
  readonly #links: PeerLinks;
  #listener: SocketListener | undefined;
  #rendezvous: Rendezvous | undefined;
  #relay: Relay | undefined;
  #rendezvousClient: RendezvousClient | undefined;
  #heartbeats: HeartbeatSender | undefined;

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
    const hasFailed = () => this.#endpoint.failure !== undefined;
    this.#dialer = new Dialer(options, parts.platform.sockets, hasFailed);
    const { sockets } = parts.platform;
    const { transport } = parts;
    this.#links = new PeerLinks(options, { sockets, transport, dialer: this.#dialer });
  }

  /**
   * Resolves when every rank is linked to every other. Rejects with JoinError, on all ranks that
   * came.
   */
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
      this.#rendezvousClient?.say({ type: 'failed', reason });
      this.#endpoint.fail({ kind: 'aborted', origin: this.#options.rank, reason });
      throw error instanceof JoinError ? error : this.#dialer.error(`${reason}.`);
    } finally {
      lateness.abort();
      this.#listener?.close();
      await this.#links.stopListening();
      this.#relay?.close();
    }
  }

  async #form(): Promise<void> {
    const { rendezvous, heartbeatMs } = this.#options;
    // The worker is started before everything else, because it takes a moment.
    this.#heartbeats = await this.#platform.startHeartbeats(heartbeatMs);
    this.#transport.heartbeats.sender = this.#heartbeats;
    this.#links.sender = this.#heartbeats;
    this.#rendezvousClient = rendezvous.isHosted
      ? await this.#host()
      : await this.#dialRendezvous();
    const addresses = await this.#rendezvousClient.table;
    const linked = this.#links.begin(addresses).then((peers) => Promise.all(peers.values()));
    linked.catch(() => {}); // where the rendezvous is heard first
    // Waiting for links alone would never end where a rank died before it had linked; the
    // rendezvous knows of that.
    await Promise.race([linked, this.#rendezvousClient.formed]);
    this.#rendezvousClient.say({ type: 'linked' });
    await this.#rendezvousClient.formed;
    this.#links.formed(addresses);
  }

  async #host(): Promise<RendezvousClient> {
    const { rank, worldSize, joinTimeoutMs, rendezvous, onListen, clock } = this.#options;
    await this.#listen(rendezvous.host, rendezvous.port, true);
    const circumstances = () => this.#listenedOn();
    this.#rendezvous = new Rendezvous({ worldSize, joinTimeoutMs, circumstances, clock });
    this.#relay = new Relay(this.#rendezvous.formed, clock);
    const client = RendezvousClient.inProcess(this.#rendezvous, rank);
    onListen?.(this.#listener!.port);
    this.#sayHere(client, { host: null, port: this.#listener!.port });
    return client;
  }

  async #dialRendezvous(): Promise<RendezvousClient> {
    const { rendezvous, listen } = this.#options;
    const opened = await this.#dialer.open('rendezvous', rendezvous);
    if (listen !== false && this.#platform.sockets.listen !== undefined) {
      try {
        const host = listen.host ?? opened.localHost ?? LOOPBACK;
        await this.#listen(host, listen.port ?? 0, listen.advertise === undefined);
      } catch (error) {
        opened.socket.terminate();
        throw error;
      }
    }
    const socket = await this.#dialer.reach({
      role: 'rendezvous',
      target: RENDEZVOUS_TARGET,
      address: rendezvous,
      first: opened.socket,
    });
    const client = RendezvousClient.overSocket(socket, this.#options.worldSize);
    const wish = listen === false ? undefined : listen;
    this.#sayHere(client, wish?.advertise ?? { host: null, port: this.#listener?.port ?? 0 });
    return client;
  }

  #sayHere(
    client: RendezvousClient,
    where: { readonly host: string | null; readonly port: number },
  ): void {
    const beats = this.#heartbeats !== undefined;
    client.say({ type: 'here', address: { ...where, beats } });
  }

  /** Listens. `isFree` tells that others reach this host at any port. */
  async #listen(host: string, port: number, isFree: boolean): Promise<void> {
    this.#links.listening = { host, isFree };
    try {
      this.#listener = await this.#platform.sockets.listen!({
        host,
        port,
        refusalOf: (hello) => this.#refusalOf(hello),
        onPeer: (hello, socket, from) => this.#onPeer(hello, socket, from),
      });
    } catch (error) {
      throw this.#dialer.error(messageOf(error));
    }
  }

  #listenedOn(): string {
    const { rendezvous, describeRefusals } = this.#options;
    const refusals = describeRefusals?.() || 'nobody was refused';
    return `it listened on ${rendezvous.host}:${this.#listener?.port}; ${refusals}`;
  }

  #refusalOf(hello: Hello): string | undefined {
    const refusal = refusalOfJob(hello, this.#options);
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
    return this.#links.refusalOf(hello);
  }

  #onPeer(hello: Hello, socket: WireSocket, from: string): void {
    if (hello.role === 'rendezvous') {
      void hostMember(this.#rendezvous!, hello.rank, socket, from);
    } else if (hello.role === 'relay') {
      this.#relay!.onPeer(hello, socket);
    } else {
      this.#links.onPeer(hello, socket);
    }
  }

  async #rejectWhenLate(signal: AbortSignal): Promise<never> {
    // The rendezvous has the same limit and knows which rank is missing, so it gets the time to
    // tell first.
    const graceMs = 1000;
    const { clock, joinTimeoutMs } = this.#options;
    await new Promise<void>((resolve) => {
      const leftMs = this.#dialer.deadline - clock.now();
      const cancel = setLimit(leftMs + graceMs, resolve, clock);
      signal.addEventListener('abort', cancel);
    });
    throw this.#dialer.error(
      `the job was not complete within ${joinTimeoutMs} ms: ${this.#whatWasMissing()}.`,
    );
  }

  #whatWasMissing(): string {
    if (this.#options.rendezvous.isHosted) {
      return this.#listenedOn();
    }
    const url = this.#dialer.rendezvousUrl ?? 'an address that the option route has not given';
    return this.#rendezvousClient === undefined
      ? `the rendezvous did not answer at ${url}, and something else may listen there`
      : `the rendezvous at ${url} has not said that all ranks are linked`;
  }

  async #rejectOnFailure(): Promise<never> {
    const failure = await this.#endpoint.failed;
    const what = failure.kind === 'peer-lost' ? `peer ${failure.origin} lost` : failure.kind;
    throw this.#dialer.error(`rank ${failure.origin}: ${what} (${failure.reason})`);
  }
}
