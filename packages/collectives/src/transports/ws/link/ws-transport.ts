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

import type { WireSocket } from '../../../sockets/wire-socket.js';
import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from '../../../transport.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import { Pulse } from '../heartbeat/pulse.js';
import { parseLinkMessage } from './parse-link-message.js';
import { DROPPED_CODE, type LinkEnd, type LinkEvents, type WsLink } from './ws-link.js';

export interface WsTransportOptions {
  readonly listener: TransportListener;
  readonly rank: number;
  readonly worldSize: number;
  readonly heartbeatMs: number;
}

/**
 * The time for which a lost link waits for what is known elsewhere. A rank that aborts and exits at
 * once resets its connections, and its peers' messages may overtake its own: without waiting, 4 of
 * 24 peers heard no reason, and 2 of 48 blamed a rank that had only heard of it.
 */
const LOSS_GRACE_MS = 150;

/**
 * The silence after which a relay is taken for stopped or cut off. It gives four signs of its own a
 * second.
 */
const MIN_RELAY_SILENCE_MS = 1000;

/**
 * What may be the cause of a loss, the surest first: a peer with a link of its own, a peer whose
 * relay lives, the relay, one of these two, or neither of them, where the peer gave up because of
 * something else.
 */
const SUSPECTS = ['peer', 'relayed peer', 'relay', 'either', 'neither'] as const;

/** A peer that is lost, and what may be the cause. */
interface Loss {
  readonly peer: number;
  readonly reason: string;
  readonly suspect: (typeof SUSPECTS)[number];
}

export interface AddLinkOptions {
  /**
   * Whether the process that hosts the rendezvous joins the link, because neither of its ends
   * listens.
   */
  readonly isRelayed?: boolean;
  /** Whether the peer has opened the link, and so opens another where it has given this one up. */
  readonly mayReturn?: boolean;
}

export interface HeartbeatSocketOptions {
  /**
   * Whether the peer is lost when the connection ends; false where a peer that leaves may end this
   * connection first.
   */
  readonly isFatal: boolean;
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
  readonly #options: WsTransportOptions;
  readonly #links = new Map<number, WsLink>();
  readonly #watches = new Map<WsLink, Watch>();
  /** The connections over which peers' heartbeat workers are heard. */
  readonly #heartbeatSockets = new Map<number, WireSocket>();
  /** The ports on which those workers listen, as far as peers have told. */
  readonly #heartbeatPorts = new Map<number, number>();
  readonly #timer: ReturnType<typeof setInterval>;
  /** The peers whose link is relayed. */
  readonly #relayed = new Set<number>();
  /** The peers that have opened their link; see Note [early ends]. */
  readonly #returning = new Set<number>();
  /** The time of the relay's last sign of its own; undefined before the first. */
  #relayHeardAt: number | undefined;
  readonly #losses = new Map<number, Loss>();
  #hasFormed = false;
  /**
   * What to do about connections that ended while the job formed, by their names; see Note [early
   * ends].
   */
  readonly #earlyEnds = new Map<string, () => void>();
  #judging: ReturnType<typeof setTimeout> | undefined;
  /** Called when a peer has told the port of its heartbeat worker. */
  onHeartbeatPort: (() => void) | undefined;
  #heartbeats: HeartbeatSender | undefined;
  /** The connections over which peers hear this rank's worker. */
  readonly #beating = new Map<number, WireSocket>();
  #isClosed = false;

  constructor(options: WsTransportOptions) {
    this.#options = options;
    this.#timer = setInterval(() => this.#tick(), options.heartbeatMs);
    this.#timer.unref?.(); // a page has no such thing
  }

  /**
   * Notes that the job has formed, and begins to watch for the silence of its peers. What ended
   * before, and was not replaced, counts from here on.
   */
  formed(optionsOf: (peer: number) => WatchOptions): void {
    this.#hasFormed = true;
    for (const [peer, link] of this.#links) {
      const options = optionsOf(peer);
      const pulse = new Pulse(options.silenceMs, performance.now());
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

  /**
   * Takes an authenticated connection over which the peer's heartbeat worker is heard, in place of
   * an older one, or drops it where the job has formed.
   */
  addHeartbeatSocket(peer: number, socket: WireSocket, { isFatal }: HeartbeatSocketOptions): void {
    if (this.#hasFormed) {
      socket.terminate();
      return;
    }
    const older = this.#heartbeatSockets.get(peer);
    this.#heartbeatSockets.set(peer, socket);
    this.#earlyEnds.delete(`heartbeat ${peer}`);
    older?.terminate();
    socket.setHandler({
      onBinary: (bytes) => {
        if (bytes.length > 0) {
          this.#relayHeardAt = performance.now(); // the sign of whoever passes the peer's on
          return;
        }
        const link = this.#links.get(peer);
        if (link !== undefined) {
          link.hasSpoken = true;
        }
      },
      onText: () => socket.terminate(),
      onClose: (code, reason) => {
        if (code === DROPPED_CODE) {
          this.#onToldLost(peer, reason);
        } else if (this.#heartbeatSockets.get(peer) === socket && isFatal) {
          this.#onHeartbeatEnd(peer, reason || 'its heartbeat connection closed');
        }
      },
    });
  }

  /** Takes the word of a peer that this rank is lost. */
  #onToldLost(peer: number, reason: string): void {
    if (!this.#isClosed) {
      const failure = { kind: 'peer-lost', origin: this.#options.rank, reason } as const;
      this.#options.listener.onControl(peer, { type: 'failure', failure });
    }
  }

  #onHeartbeatEnd(peer: number, reason: string): void {
    if (!this.#hasFormed) {
      this.#heartbeatSockets.delete(peer);
      this.#earlyEnds.set(`heartbeat ${peer}`, () => this.#onHeartbeatEnd(peer, reason));
    } else if (this.#links.has(peer)) {
      this.onLost(peer, reason);
    }
  }

  hasHeartbeat(peer: number): boolean {
    return this.#heartbeatSockets.has(peer);
  }

  /**
   * The port of the peer's heartbeat worker: 0 where it doesn't listen, undefined until the peer
   * has told.
   */
  heartbeatPortOf(peer: number): number | undefined {
    return this.#heartbeatPorts.get(peer);
  }

  /** Makes this rank's worker beat over an authenticated connection to the peer. */
  beatTo(peer: number, socket: WireSocket): void {
    this.#beating.set(peer, socket);
    this.#heartbeats!.beat(socket);
  }

  /** Takes this rank's own heartbeats, which end with the transport. */
  addHeartbeats(heartbeats: HeartbeatSender): void {
    this.#heartbeats = heartbeats;
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
    await Promise.all([...this.#links.values()].map((link) => link.close(how)));
    // Heartbeats end after the links: a peer that lost them first would take that for a death.
    await this.#endHeartbeats();
  }

  terminate(): void {
    this.#stop();
    for (const link of this.#links.values()) {
      link.terminate();
    }
    void this.#endHeartbeats();
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    return this.#options.listener.onMessage(from, header);
  }

  onText(from: number, text: string): void {
    const message = parseLinkMessage(text, this.#options.worldSize);
    if (message.type === 'heartbeat port') {
      this.#heartbeatPorts.set(from, message.port);
      this.onHeartbeatPort?.();
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
    if (this.#isClosed || this.#losses.has(loss.peer)) {
      return;
    }
    this.#losses.set(loss.peer, loss);
    // The two ends of a stopped relay fall silent within a beat of each other, and of the relay.
    const isRelayed = this.#relayed.has(loss.peer);
    const graceMs = Math.max(LOSS_GRACE_MS, isRelayed ? 2 * this.#options.heartbeatMs : 0);
    this.#judging ??= setTimeout(() => this.#judge(), graceMs);
  }

  /** Blames one of the lost peers. Where another rank knew the cause, the job has failed by now. */
  #judge(): void {
    const weight = ({ suspect }: Loss) => SUSPECTS.indexOf(suspect);
    const [first, ...others] = [...this.#losses.values()].sort((a, b) => weight(a) - weight(b));
    const also = others
      .map(({ peer, reason }) => `; rank ${peer} is lost, too: ${reason}`)
      .join('');
    const { peer, reason, suspect } = first!;
    // A peer that was stopped, or whose link is full, hears over a connection of its own that it is
    // lost, and so blames nobody else when it goes on.
    for (const loss of [first!, ...others]) {
      if (loss.suspect === 'peer' || loss.suspect === 'relayed peer') {
        this.#beating.get(loss.peer)?.close(DROPPED_CODE, loss.reason);
      }
    }
    if (suspect === 'relay') {
      this.#options.listener.onRelayLost(`${reason}, on the way to rank ${peer}${also}`);
      return;
    }
    const how = suspect === 'either' ? ', by way of the relay, which may be what is gone' : '';
    this.#options.listener.onPeerLost(peer, `${reason}${how}${also}`);
  }

  onLeft(peer: number): void {
    if (!this.#isClosed) {
      this.#watches.delete(this.#links.get(peer)!);
      this.#links.delete(peer);
      this.#options.listener.onPeerLeft(peer);
    }
  }

  #tick(): void {
    const now = performance.now();
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
    if (this.#relayHeardAt === undefined) {
      return 'either';
    }
    // Peer and relay would have fallen silent within a beat of each other.
    const limitMs = Math.max(silenceMs / 2, MIN_RELAY_SILENCE_MS);
    return now - this.#relayHeardAt > limitMs ? 'relay' : 'relayed peer';
  }

  #stop(): void {
    this.#isClosed = true;
    clearInterval(this.#timer);
    clearTimeout(this.#judging);
  }

  async #endHeartbeats(): Promise<void> {
    for (const socket of this.#heartbeatSockets.values()) {
      socket.terminate();
    }
    await this.#heartbeats?.close();
  }
}
