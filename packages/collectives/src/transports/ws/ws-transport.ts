// Transport over a full mesh of WebSocket links, with heartbeats: a peer that closes is lost at once,
// a peer that says nothing only after a long silence, since it may be busy.

import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from '../../transport.js';
import type { LinkEvents, LinkMessage, WsLink } from './ws-link.js';

export interface WsTransportOptions {
  readonly listener: TransportListener;
  readonly heartbeatMs: number;
  readonly silenceMs: number;
}

export class WsTransport implements Transport, LinkEvents {
  readonly #options: WsTransportOptions;
  readonly #links = new Map<number, WsLink>();
  readonly #timer: ReturnType<typeof setInterval>;
  #isClosed = false;

  constructor(options: WsTransportOptions) {
    this.#options = options;
    this.#timer = setInterval(() => this.#tick(), options.heartbeatMs);
    this.#timer.unref();
  }

  addLink(link: WsLink): void {
    this.#links.set(link.peer, link);
    link.start();
  }

  link(peer: number): WsLink | undefined {
    return this.#links.get(peer);
  }

  async send(to: number, header: MessageHeader, payload: Uint8Array): Promise<void> {
    await this.#links.get(to)?.send(header, payload);
  }

  sendControl(to: number, message: ControlMessage): void {
    this.#links.get(to)?.sendControl(message);
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    this.#isClosed = true;
    clearInterval(this.#timer);
    await Promise.all([...this.#links.values()].map((link) => link.close(how)));
  }

  terminate(): void {
    this.#isClosed = true;
    clearInterval(this.#timer);
    for (const link of this.#links.values()) {
      link.terminate();
    }
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    return this.#options.listener.onMessage(from, header);
  }

  onControl(from: number, message: LinkMessage): void {
    if (message.type !== 'alive') {
      this.#options.listener.onControl(from, message);
    }
  }

  onLost(peer: number, reason: string): void {
    if (!this.#isClosed) {
      this.#options.listener.onPeerLost(peer, reason);
    }
  }

  onLeft(peer: number): void {
    if (!this.#isClosed) {
      this.#links.delete(peer);
      this.#options.listener.onPeerLeft(peer);
    }
  }

  // Silence is counted in ticks, not in time: if this rank was busy for a minute, one tick comes
  // late, and the peer's words are read before the next.
  #tick(): void {
    const { heartbeatMs, silenceMs, listener } = this.#options;
    for (const link of [...this.#links.values()]) {
      if (link.tick() * heartbeatMs > silenceMs) {
        link.terminate();
        listener.onPeerLost(link.peer, `silent for ${silenceMs} ms`);
      }
    }
  }
}
