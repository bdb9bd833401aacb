// The transport over a full mesh of links, which watches over its peers: one whose connection ends
// is lost at once, and one that falls silent a little later. A peer's signs of life come from its
// heartbeat worker, so silence means that it is stopped or cut off. Where there is no worker they
// come over the link.
//
// Note [early ends]
// A peer whose event loop was held may have given up a connection before this rank accepts it. It
// then authenticates anew, and the newer connection replaces the older. So while a job forms, the
// end of an accepted connection is no loss: the rendezvous tells who is lost. An end that nothing
// has replaced counts when the job has formed.

import { type Clock, every, systemClock } from '../../../clock.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from '../../../transport.js';
import { Pulse } from '../heartbeat/pulse.js';
import { type Loss, LossJudge } from './loss-judge.js';
import { parseLinkMessage } from './parse-link-message.js';
import { type HeartbeatSocketOptions, PeerHeartbeats } from './peer-heartbeats.js';
import type { LinkEnd, LinkEvents, WsLink } from './ws-link.js';

export interface WsTransportOptions {
  readonly listener: TransportListener;
  readonly rank: number;
  readonly worldSize: number;
  readonly heartbeatMs: number;
  /** Default: the system's. */
  readonly clock?: Clock;
  /** Whether the heartbeat worker is used again after this transport. Default: it ends with it. */
  readonly keepsSender?: boolean;
}

/**
 * The silence after which a relay is taken for stopped or cut off. It gives four signs of its own a
 * second.
 */
const MIN_RELAY_SILENCE_MS = 1000;

export interface AddLinkOptions {
  /**
   * Whether the process that hosts the rendezvous joins the link, because neither of its ends
   * listens.
   */
  readonly isRelayed?: boolean;
  /** Whether the peer has opened the link, and so opens another where it has given this one up. */
  readonly mayReturn?: boolean;
}

export interface WatchOptions {
  /** The milliseconds of silence after which the peer counts as lost. */
  readonly silenceMs: number;
  /** Whether the peer hears this rank's signs of life only over the link. */
  readonly saysAlive: boolean;
}

interface Watch {
  readonly options: WatchOptions;
  readonly pulse: Pulse;
}

export class WsTransport implements Transport, LinkEvents {
  readonly heartbeats: PeerHeartbeats;
  readonly #options: Required<WsTransportOptions>;
  readonly #links = new Map<number, WsLink>();
  readonly #watches = new Map<WsLink, Watch>();
  readonly #stopTicks: () => void;
  /** The peers whose link is relayed. */
  readonly #relayed = new Set<number>();
  /** The peers that have opened their link; see Note [early ends]. */
  readonly #returning = new Set<number>();
  readonly #judge: LossJudge;
  #hasFormed = false;
  /**
   * What to do about connections that ended while the job formed, by their names; see Note [early
   * ends].
   */
  readonly #earlyEnds = new Map<string, () => void>();
  #isClosed = false;

  constructor(options: WsTransportOptions) {
    this.#options = { clock: systemClock, keepsSender: false, ...options };
    const { listener, clock, heartbeatMs } = this.#options;
    this.heartbeats = new PeerHeartbeats(this, this.#options);
    this.#judge = new LossJudge(listener, this.heartbeats, clock);
    this.#stopTicks = every(clock, heartbeatMs, () => this.#tick());
  }

  /**
   * Notes that the job has formed, and begins to watch for the silence of its peers. What ended
   * before, and was not replaced, counts from here on.
   */
  formed(optionsOf: (peer: number) => WatchOptions): void {
    this.#hasFormed = true;
    for (const [peer, link] of this.#links) {
      const options = optionsOf(peer);
      const pulse = new Pulse(options.silenceMs, this.#options.clock.now());
      this.#watches.set(link, { options, pulse });
    }
    for (const end of this.#earlyEnds.values()) {
      end();
    }
    this.#earlyEnds.clear();
  }

  /** Takes a link, in place of an older one, or drops it where the job has formed. */
  addLink(link: WsLink, { isRelayed = false, mayReturn = false }: AddLinkOptions = {}): void {
    if (this.#hasFormed) {
      link.terminate();
      return;
    }
    this.#links.get(link.peer)?.terminate();
    if (mayReturn) {
      this.#returning.add(link.peer);
    }
    this.#earlyEnds.delete(`link ${link.peer}`);
    this.#links.set(link.peer, link);
    if (isRelayed) {
      this.#relayed.add(link.peer);
    }
    link.start();
  }

  link(peer: number): WsLink | undefined {
    return this.#links.get(peer);
  }

  /** Takes a connection for signs of life, or drops it where the job has formed. */
  addHeartbeatSocket(peer: number, socket: WireSocket, options: HeartbeatSocketOptions): void {
    if (this.#hasFormed) {
      socket.terminate();
      return;
    }
    this.#earlyEnds.delete(`heartbeat ${peer}`);
    this.heartbeats.hear(peer, socket, options);
  }

  onHeartbeat(peer: number): void {
    const link = this.#links.get(peer);
    if (link !== undefined) {
      link.hasSpoken = true;
    }
  }

  /** Called with the word of a peer that this rank is lost. */
  onToldLost(peer: number, reason: string): void {
    if (!this.#isClosed) {
      const failure = { kind: 'peer-lost', origin: this.#options.rank, reason } as const;
      this.#options.listener.onControl(peer, { type: 'failure', failure });
    }
  }

  /** Called when the end of a connection for signs of life means that its peer is lost. */
  onHeartbeatEnd(peer: number, reason: string): void {
    if (!this.#hasFormed) {
      this.heartbeats.forget(peer);
      this.#earlyEnds.set(`heartbeat ${peer}`, () => this.onHeartbeatEnd(peer, reason));
    } else if (this.#links.has(peer)) {
      this.onLost(peer, reason);
    }
  }

  send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined {
    return this.#links.get(to)?.send(header, payload, onProgress);
  }

  sendControl(to: number, message: ControlMessage): void {
    this.#links.get(to)?.sendControl(message);
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    this.#stop();
    const { clock } = this.#options;
    await Promise.all([...this.#links.values()].map((link) => link.close(how, clock)));
    // Heartbeats end after the links: a peer that lost them first would take that for a death.
    await this.heartbeats.close();
  }

  terminate(): void {
    this.#stop();
    for (const link of this.#links.values()) {
      link.terminate();
    }
    void this.heartbeats.close();
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    return this.#options.listener.onMessage(from, header);
  }

  onText(from: number, text: string): void {
    const message = parseLinkMessage(text, this.#options.worldSize);
    if (message.type === 'heartbeat port') {
      this.heartbeats.setPort(from, message.port);
    } else if (message.type !== 'alive') {
      this.#options.listener.onControl(from, message);
    }
  }

  onLost(peer: number, reason: string, end?: LinkEnd): void {
    if (!this.#hasFormed && this.#returning.has(peer)) {
      this.#links.delete(peer);
      this.#earlyEnds.set(`link ${peer}`, () => this.onLost(peer, reason, end));
    } else if (end?.hasFailed) {
      this.#lose({ peer, reason, suspect: 'neither' });
    } else if (!this.#relayed.has(peer)) {
      this.#lose({ peer, reason, suspect: 'peer' });
    } else {
      // A relay that lives tells how the peer's connection ended.
      this.#lose({ peer, reason, suspect: end?.isCut ? 'relay' : 'relayed peer' });
    }
  }

  #lose(loss: Loss): void {
    // The two ends of a stopped relay fall silent within a beat of each other, and of the relay.
    const isRelayed = this.#relayed.has(loss.peer);
    this.#judge.add(loss, isRelayed ? 2 * this.#options.heartbeatMs : 0);
  }

  onLeft(peer: number): void {
    if (!this.#isClosed) {
      this.#watches.delete(this.#links.get(peer)!);
      this.#links.delete(peer);
      this.#options.listener.onPeerLeft(peer);
    }
  }

  #tick(): void {
    const now = this.#options.clock.now();
    for (const [link, { options, pulse }] of [...this.#watches]) {
      if (options.saysAlive) {
        link.sendControl({ type: 'alive' });
      }
      const { hasSpoken } = link;
      link.hasSpoken = false;
      if (pulse.isLost(hasSpoken, now)) {
        this.#watches.delete(link);
        const suspect = this.#suspectOfSilence(link.peer, options.silenceMs, now);
        this.#lose({ peer: link.peer, reason: `silent for ${options.silenceMs} ms`, suspect });
      }
    }
  }

  #suspectOfSilence(peer: number, silenceMs: number, now: number): Loss['suspect'] {
    if (!this.#relayed.has(peer)) {
      return 'peer';
    }
    const { relayHeardAt } = this.heartbeats;
    if (relayHeardAt === undefined) {
      return 'either';
    }
    // Peer and relay would have fallen silent within a beat of each other.
    const limitMs = Math.max(silenceMs / 2, MIN_RELAY_SILENCE_MS);
    return now - relayHeardAt > limitMs ? 'relay' : 'relayed peer';
  }

  #stop(): void {
    this.#isClosed = true;
    this.#stopTicks();
    this.#judge.stop();
  }
}
