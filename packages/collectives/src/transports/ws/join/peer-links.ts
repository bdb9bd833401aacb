// One rank's links to all others of a table, and the signs of life beside them. They are made once:
// those of an elastic job anew for each epoch.

import type { Hello } from '../../../sockets/handshake.js';
import type { SocketPlatform } from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import { WsLink } from '../link/ws-link.js';
import type { WsTransport } from '../link/ws-transport.js';
import type { Dialer } from './dialer.js';
import { HeartbeatExchange, type HeartbeatExchangeOptions } from './heartbeat-exchange.js';
import { addressOf, type JoinerOptions } from './joiner-options.js';
import { linkPart } from './link-plan.js';
import { PeerCondition } from './peer-condition.js';
import type { PeerAddress } from './rendezvous-messages.js';

export interface PeerLinksParts {
  readonly sockets: SocketPlatform;
  readonly transport: WsTransport;
  readonly dialer: Dialer;
}

export class PeerLinks {
  /** This rank's heartbeat worker, once it has one. */
  sender: HeartbeatSender | undefined;
  /** Where this rank listens, once it does. */
  listening: HeartbeatExchangeOptions['listening'];
  readonly #options: JoinerOptions;
  readonly #parts: PeerLinksParts;
  readonly #peersChanged = new PeerCondition();
  #exchange: HeartbeatExchange | undefined;
  /** Tells a peer that can't listen where it may hear this rank, once that is known. */
  #tellHeartbeatPort: (peer: number) => void = () => {};

  constructor(options: JoinerOptions, parts: PeerLinksParts) {
    this.#options = options;
    this.#parts = parts;
    parts.transport.heartbeats.onPort = () => this.#peersChanged.notifyAll();
  }

  /** The reason for turning away a peer of this job; undefined where it may stay. */
  refusalOf(hello: Hello): string | undefined {
    const { rank } = this.#options;
    if (hello.role !== 'link' && hello.role !== 'heartbeat') {
      return `no ${hello.role} here`;
    }
    if (hello.target !== rank) {
      return `this is rank ${rank}, not ${hello.target}`;
    }
    return hello.rank === rank ? `rank ${rank} is here already` : undefined;
  }

  /** Takes an authenticated socket of role 'link' or 'heartbeat'. */
  onPeer(hello: Hello, socket: WireSocket): void {
    const { transport } = this.#parts;
    if (hello.role === 'link') {
      transport.addLink(new WsLink(socket, hello.rank, transport), { mayReturn: true });
      this.#tellHeartbeatPort(hello.rank);
    } else {
      transport.addHeartbeatSocket(hello.rank, socket, { isFatal: true });
    }
    this.#peersChanged.notifyAll();
  }

  /**
   * Begins to link to all, whichever end opens a link, and resolves with the promises of each
   * peer's link and signs of life.
   */
  async begin(addresses: readonly PeerAddress[]): Promise<ReadonlyMap<number, Promise<unknown>>> {
    const { sockets, transport, dialer } = this.#parts;
    const exchange = new HeartbeatExchange({
      job: this.#options,
      sockets,
      transport,
      dialer,
      sender: this.sender,
      listening: this.listening,
      peersChanged: this.#peersChanged,
    });
    this.#exchange = exchange;
    const port = await exchange.listen(addresses);
    this.#tellHeartbeatPort = (peer) => {
      if (addresses[peer]!.port === 0) {
        transport.link(peer)?.sendControl({ type: 'heartbeat port', port });
      }
    };
    const peers = [...addresses.keys()].filter((peer) => peer !== this.#options.rank);
    peers.forEach(this.#tellHeartbeatPort);
    return new Map(
      peers.map((peer) => {
        const both = [this.#linkTo(peer, addresses), exchange.exchange(peer, addresses)];
        return [peer, Promise.all(both)];
      }),
    );
  }

  /** Notes that all have formed the job, and begins to watch over them. */
  formed(addresses: readonly PeerAddress[]): void {
    const { transport } = this.#parts;
    const { silenceMs, linkSilenceMs } = this.#options;
    transport.formed((peer) => ({
      silenceMs: transport.heartbeats.isHeard(peer) ? silenceMs : linkSilenceMs,
      saysAlive: this.sender === undefined || addresses[peer]!.port === 0,
    }));
  }

  async stopListening(): Promise<void> {
    await this.#exchange?.stopListening();
  }

  /** Resolves when the link is there, whichever end opens it. */
  async #linkTo(peer: number, addresses: readonly PeerAddress[]): Promise<void> {
    const { transport, dialer } = this.#parts;
    const part = linkPart(this.#options.rank, peer, addresses);
    if (part === 'await') {
      await this.#peersChanged.waitUntil(() => transport.link(peer) !== undefined);
      return;
    }
    const isRelayed = part === 'relay';
    const socket = await dialer.reach({
      role: isRelayed ? 'relay' : 'link',
      target: peer,
      address: isRelayed ? this.#options.rendezvous : addressOf(addresses[peer]!, this.#options),
    });
    transport.addLink(new WsLink(socket, peer, transport), { isRelayed });
  }
}
