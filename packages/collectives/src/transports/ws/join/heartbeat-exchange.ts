// Arranges signs of life while a job forms: which connections carry them between this rank and each
// other one.
//   both listen, or the peer does   this rank's worker dials the peer's listener, and beats
//   only this rank listens          its worker listens for the peer, which dials it and hears it
//   neither does                    both workers dial the rendezvous' process, which joins them;
//                                   but not where that is a rank: it computes, and watches both
//                                   anyway
//
// A peer that can't be reached in any of these ways is judged by its link (`linkSilenceMs`).

import type { SocketPlatform } from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { within } from '../../../time-limit.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import type { WsTransport } from '../link/ws-transport.js';
import type { Dialer } from './dialer.js';
import { addressOf, type JoinerOptions, refusalOfJob } from './joiner-options.js';
import type { PeerCondition } from './peer-condition.js';
import type { PeerAddress } from './rendezvous-messages.js';

export interface HeartbeatExchangeOptions {
  readonly job: JoinerOptions;
  readonly sockets: SocketPlatform;
  readonly transport: WsTransport;
  readonly dialer: Dialer;
  /** This rank's heartbeat worker, where it has one. */
  readonly sender: HeartbeatSender | undefined;
  /**
   * The host at which this rank listens, if it does, and whether it may listen on any port there.
   */
  readonly listening: { readonly host: string; readonly isFree: boolean } | undefined;
  /** Announced whenever a peer has come or told something. */
  readonly peersChanged: PeerCondition;
}

export class HeartbeatExchange {
  readonly #options: HeartbeatExchangeOptions;
  /** The peers that hear this rank's worker over connections that they have opened. */
  readonly #subscribers = new Set<number>();
  #isListening = false;

  constructor(options: HeartbeatExchangeOptions) {
    this.#options = options;
  }

  /**
   * Listens for peers that can't listen. Resolves with the port on which they hear this rank, or
   * with 0 where they can't.
   */
  async listen(addresses: readonly PeerAddress[]): Promise<number> {
    const { sender, listening, job } = this.#options;
    const { rank } = job;
    const isWanted = addresses.some(({ port }, peer) => port === 0 && peer !== rank);
    // Where only one port is published, peers can't reach another one.
    if (!isWanted || listening?.isFree !== true || sender?.listen === undefined) {
      return 0;
    }
    this.#isListening = true;
    return sender.listen({
      host: listening.host,
      refusalOf: (hello) => {
        const isSubscriber = hello.role === 'heartbeat subscriber' && hello.target === rank;
        const isExpected = addresses[hello.rank]?.port === 0 && !this.#subscribers.has(hello.rank);
        return (
          refusalOfJob(hello, job) ??
          (isSubscriber && isExpected ? undefined : `no ${hello.role} here`)
        );
      },
      onPeer: (hello, socket) => {
        this.#subscribers.add(hello.rank);
        this.#options.transport.heartbeats.beatTo(hello.rank, socket);
      },
    });
  }

  /**
   * Resolves when signs of life go both ways, as far as they can. It does not wait for the link.
   */
  async exchange(peer: number, addresses: readonly PeerAddress[]): Promise<void> {
    const { sender, job, listening, peersChanged, transport } = this.#options;
    const address = addresses[peer]!;
    const isOwnDeaf = addresses[job.rank]!.port === 0;
    if (sender !== undefined && address.port !== 0) {
      await this.#beatTo(peer, address, sender);
    }
    if (isOwnDeaf && address.port !== 0 && address.beats) {
      await this.#hear(peer, address);
    }
    const isHostRank = addresses.some(({ host, port }) => host === null && port !== 0);
    if (isOwnDeaf && address.port === 0 && address.beats && sender !== undefined && !isHostRank) {
      await this.#meet(peer, sender);
    }
    if (listening !== undefined && address.beats) {
      await peersChanged.waitUntil(() => transport.heartbeats.isHeard(peer));
    }
  }

  async stopListening(): Promise<void> {
    if (this.#isListening) {
      await this.#options.sender?.stopListening?.();
    }
  }

  async #beatTo(peer: number, address: PeerAddress, sender: HeartbeatSender): Promise<void> {
    const { dialer, job, transport } = this.#options;
    const socket = await dialer.reach({
      role: 'heartbeat',
      target: peer,
      address: addressOf(address, job),
      open: (url) => sender.open(url),
    });
    transport.heartbeats.beatTo(peer, socket);
  }

  /** Listens to the peer's worker, where it can be reached; a firewall may block its port. */
  async #hear(peer: number, address: PeerAddress): Promise<void> {
    const { dialer, transport, sockets, job, peersChanged } = this.#options;
    await peersChanged.waitUntil(() => transport.heartbeats.portOf(peer) !== undefined);
    const port = transport.heartbeats.portOf(peer)!;
    if (port === 0) {
      return;
    }
    try {
      const url = await dialer.urlOf(peer, { host: addressOf(address, job).host, port });
      const socket = await openWithin(job, sockets, url);
      await dialer.authenticate(socket, { role: 'heartbeat subscriber', target: peer });
      // A page learns late that a link has ended, so this connection of a peer that leaves may end
      // before its link.
      transport.addHeartbeatSocket(peer, socket, { isFatal: false });
    } catch {
      // The peer is judged by its link in that case.
    }
  }

  async #meet(peer: number, sender: HeartbeatSender): Promise<void> {
    const { dialer, transport, job } = this.#options;
    const socket = await dialer.reach({
      role: 'heartbeat relay',
      target: peer,
      address: job.rendezvous,
      open: (url) => sender.open(url),
    });
    transport.addHeartbeatSocket(peer, socket, { isFatal: false });
    transport.heartbeats.beatTo(peer, socket);
  }
}

async function openWithin(
  { proofMs, clock }: Pick<JoinerOptions, 'proofMs' | 'clock'>,
  sockets: SocketPlatform,
  url: string,
): Promise<WireSocket> {
  const opening = sockets.open(url, proofMs);
  const onLate = () => {
    throw new Error('no answer');
  };
  try {
    const opened = await within(proofMs, opening, onLate, clock);
    return opened.socket;
  } catch (error) {
    opening.then(({ socket }) => socket.terminate()).catch(() => {});
    throw error;
  }
}
