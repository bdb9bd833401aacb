// A member's links to the others, epoch by epoch. Its listener and its heartbeat worker last as
// long as the member; each epoch has an endpoint and sockets of its own, whose proof covers the
// number of the epoch. Nothing of one epoch is read in another.
//
// Note [early peers]
// Members hear of an epoch at different times. Who hears of it first dials those who have not, and
// waits, authenticated, until they have.

import type { ProcessServices } from '../../../endpoint/endpoint.js';
import { sharedReducer } from '../../../endpoint/reduce-hook.js';
import type { GroupOptions } from '../../../group/group-options.js';
import { createWorldGroup } from '../../../group/group-options.js';
import type { ProcessGroup } from '../../../group/process-group.js';
import { EpochEndpoint } from '../../../membership/epoch-endpoint.js';
import type { EpochLinker, EpochLinks, LinkEvents } from '../../../membership/member.js';
import type { Table } from '../../../membership/messages.js';
import { REFUSED_CODE } from '../../../sockets/authenticate.js';
import { type Hello, isSameRun } from '../../../sockets/handshake.js';
import type { SocketListener, SocketPlatform } from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import { Dialer } from '../join/dialer.js';
import { type JoinerOptions, refusalOfJob } from '../join/joiner-options.js';
import { PeerLinks } from '../join/peer-links.js';
import type { PeerAddress } from '../join/rendezvous-messages.js';
import { WsTransport } from '../link/ws-transport.js';

/** The most sockets that wait for an epoch; see Note [early peers]. Each member opens two. */
const MAX_EARLY = 512;

export interface EpochSocketsParts {
  readonly groupOptions: GroupOptions;
  /** The options of a rank; its rank, world size and attempt are those of an epoch. */
  readonly options: JoinerOptions;
  readonly sockets: SocketPlatform;
  readonly sender: HeartbeatSender | undefined;
}

export class EpochSockets implements EpochLinker<PeerAddress> {
  readonly #parts: EpochSocketsParts;
  readonly #services: ProcessServices = { reducer: sharedReducer() };
  #listener: SocketListener | undefined;
  #address: PeerAddress | undefined;
  #current: WsEpoch | undefined;
  #early: { readonly hello: Hello; readonly socket: WireSocket }[] = [];

  constructor(parts: EpochSocketsParts) {
    this.#parts = parts;
  }

  get address(): PeerAddress {
    return this.#address!;
  }

  /**
   * Listens for the others of all epochs, where it can and is to. Rejects with ListenError.
   * @param localHost the host at which it listens, unless an option names one
   */
  async listen(localHost: string): Promise<void> {
    const { options, sockets, sender } = this.#parts;
    const { listen } = options;
    const beats = sender !== undefined;
    if (listen === false || sockets.listen === undefined) {
      this.#address = { host: null, port: 0, beats };
      return;
    }
    this.#listener = await sockets.listen({
      host: listen.host ?? localHost,
      port: listen.port ?? 0,
      refusalOf: (hello) => this.#refusalOf(hello),
      onPeer: (hello, socket) => this.#onPeer(hello, socket),
    });
    this.#address = { ...(listen.advertise ?? { host: null, port: this.#listener.port }), beats };
  }

  link(table: Table<PeerAddress>, rank: number, events: LinkEvents): EpochLinks {
    const epoch = new WsEpoch(table, rank, { events, services: this.#services }, this.#parts);
    this.#current = epoch;
    const early = this.#early;
    this.#early = [];
    for (const { hello, socket } of early) {
      const refusal = this.#refusalOf(hello);
      if (refusal === undefined) {
        this.#onPeer(hello, socket);
      } else {
        socket.close(REFUSED_CODE, refusal);
      }
    }
    epoch.connect();
    return epoch;
  }

  async close(): Promise<void> {
    this.#listener?.close();
    for (const { socket } of this.#early) {
      socket.terminate();
    }
    await this.#current?.closed();
    await this.#parts.sender?.close();
  }

  #refusalOf(hello: Hello): string | undefined {
    if (!isSameRun(hello.run, this.#parts.options.run)) {
      return 'this is another run: its runId is not the same';
    }
    const { number = 0 } = this.#current ?? {};
    if (hello.attempt < number) {
      return `epoch ${hello.attempt} is over, this is epoch ${number}`;
    }
    return hello.attempt === number ? this.#current?.refusalOf(hello) : undefined;
  }

  #onPeer(hello: Hello, socket: WireSocket): void {
    if (hello.attempt === this.#current?.number) {
      this.#current.onPeer(hello, socket);
    } else if (this.#early.length < MAX_EARLY) {
      this.#early.push({ hello, socket });
    } else {
      socket.close(REFUSED_CODE, 'too many wait here for an epoch');
    }
  }
}

/** The links of one epoch. */
class WsEpoch implements EpochLinks {
  readonly number: number;
  readonly #addresses: readonly PeerAddress[];
  readonly #options: JoinerOptions;
  readonly #groupOptions: GroupOptions;
  readonly #endpoint: EpochEndpoint;
  readonly #links: PeerLinks;
  readonly #ids: readonly number[];
  readonly #events: LinkEvents;
  readonly #linked = new Set<number>();

  constructor(
    table: Table<PeerAddress>,
    rank: number,
    { events, services }: { readonly events: LinkEvents; readonly services: ProcessServices },
    { options, groupOptions, sockets, sender }: EpochSocketsParts,
  ) {
    const { epoch, members } = table;
    const { length: worldSize } = members;
    this.number = epoch;
    this.#addresses = members.map(({ address }) => address);
    this.#ids = members.map(({ id }) => id);
    this.#events = events;
    this.#groupOptions = groupOptions;
    const route: JoinerOptions['route'] = (target, address) =>
      options.route(target === 'rendezvous' ? target : this.#ids[target]!, address);
    this.#options = { ...options, rank, worldSize, attempt: epoch, route };
    this.#endpoint = new EpochEndpoint(rank, worldSize, groupOptions, {
      onLost: (lost, reason) => this.#onLost(lost, reason),
      services,
    });
    const transport = new WsTransport({
      listener: this.#endpoint,
      rank,
      worldSize,
      heartbeatMs: options.heartbeatMs,
      clock: options.clock,
      keepsSender: true,
    });
    this.#endpoint.attach(transport);
    transport.heartbeats.sender = sender;
    const isOver = () => this.#endpoint.failure !== undefined;
    const dialer = new Dialer(this.#options, sockets, isOver);
    this.#links = new PeerLinks(this.#options, { sockets, transport, dialer });
    this.#links.sender = sender;
    if (this.#addresses[rank]!.port !== 0) {
      this.#links.listening = { host: '', isFree: false };
    }
  }

  refusalOf(hello: Hello): string | undefined {
    const { failure } = this.#endpoint;
    if (failure !== undefined) {
      return `epoch ${this.number} is over (${failure.reason})`;
    }
    return refusalOfJob(hello, this.#options) ?? this.#links.refusalOf(hello);
  }

  onPeer(hello: Hello, socket: WireSocket): void {
    this.#links.onPeer(hello, socket);
  }

  /** Begins to link to all. A link that can't be made is none, and ends nothing. */
  connect(): void {
    void this.#links.begin(this.#addresses).then((peers) => {
      this.#tellLinked();
      for (const [peer, promise] of peers) {
        promise.then(
          () => {
            this.#linked.add(peer);
            this.#tellLinked();
          },
          () => {},
        );
      }
    });
  }

  begin(): ProcessGroup {
    this.#links.formed(this.#addresses);
    return createWorldGroup(this.#endpoint, { ...this.#groupOptions, epoch: this.number });
  }

  end(reason: string, lost: readonly number[]): void {
    this.#endpoint.end(reason, lost);
  }

  /** Resolves when all its sockets have ended. */
  async closed(): Promise<void> {
    await this.#endpoint.close();
  }

  #onLost(lost: readonly number[], reason: string): void {
    for (const peer of lost) {
      this.#linked.delete(peer);
    }
    this.#tellLinked();
    this.#events.lost(
      lost.map((peer) => this.#ids[peer]!),
      reason,
    );
  }

  #tellLinked(): void {
    this.#events.linked([...this.#linked].map((peer) => this.#ids[peer]!));
  }
}
