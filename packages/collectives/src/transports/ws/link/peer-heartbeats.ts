// Signs of life beside the links: the connections over which peers' heartbeat workers are heard,
// and those over which this rank's worker beats.

import type { Clock } from '../../../clock.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import { DROPPED_CODE } from './ws-link.js';
import type { WsTransport } from './ws-transport.js';

export interface HeartbeatSocketOptions {
  /**
   * Whether the peer is lost when the connection ends; false where a peer that leaves may end this
   * connection first.
   */
  readonly isFatal: boolean;
}

interface PeerHeartbeatsOptions {
  readonly clock: Clock;
  readonly keepsSender: boolean;
}

export class PeerHeartbeats {
  /** This rank's own worker, which ends with the transport unless it is kept. */
  sender: HeartbeatSender | undefined;
  /** Called when a peer has told the port of its worker. */
  onPort: (() => void) | undefined;
  readonly #transport: WsTransport;
  readonly #options: PeerHeartbeatsOptions;
  readonly #sockets = new Map<number, WireSocket>();
  /** The ports on which peers' workers listen, as far as they have told. */
  readonly #ports = new Map<number, number>();
  readonly #beating = new Map<number, WireSocket>();
  #relayHeardAt: number | undefined;

  constructor(transport: WsTransport, options: PeerHeartbeatsOptions) {
    this.#transport = transport;
    this.#options = options;
  }

  /** The time of the relay's last sign of its own; undefined before the first. */
  get relayHeardAt(): number | undefined {
    return this.#relayHeardAt;
  }

  /**
   * Takes an authenticated connection over which the peer's worker is heard, in place of an older
   * one.
   */
  hear(peer: number, socket: WireSocket, { isFatal }: HeartbeatSocketOptions): void {
    const older = this.#sockets.get(peer);
    this.#sockets.set(peer, socket);
    older?.terminate();
    socket.setHandler({
      onBinary: (bytes) => {
        if (bytes.length > 0) {
          this.#relayHeardAt = this.#options.clock.now(); // the sign of whoever passes the peer's on
        } else {
          this.#transport.onHeartbeat(peer);
        }
      },
      onText: () => socket.terminate(),
      onClose: (code, reason) => {
        if (code === DROPPED_CODE) {
          this.#transport.onToldLost(peer, reason);
        } else if (this.#sockets.get(peer) === socket && isFatal) {
          this.#transport.onHeartbeatEnd(peer, reason || 'its heartbeat connection closed');
        }
      },
    });
  }

  isHeard(peer: number): boolean {
    return this.#sockets.has(peer);
  }

  /** Forgets the connection over which the peer was heard. */
  forget(peer: number): void {
    this.#sockets.delete(peer);
  }

  setPort(peer: number, port: number): void {
    this.#ports.set(peer, port);
    this.onPort?.();
  }

  /**
   * The port of the peer's worker: 0 where it doesn't listen, undefined until the peer has told.
   */
  portOf(peer: number): number | undefined {
    return this.#ports.get(peer);
  }

  /** Makes this rank's worker beat over an authenticated connection to the peer. */
  beatTo(peer: number, socket: WireSocket): void {
    this.#beating.set(peer, socket);
    this.sender!.beat(socket);
  }

  /**
   * Tells a peer that it is lost. One that was stopped, or whose link is full, hears it over the
   * worker's connection, and so blames nobody else when it goes on.
   */
  tellLost(peer: number, reason: string): void {
    this.#beating.get(peer)?.close(DROPPED_CODE, reason);
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets.values()) {
      socket.terminate();
    }
    if (!this.#options.keepsSender) {
      await this.sender?.close();
      return;
    }
    for (const socket of this.#beating.values()) {
      socket.terminate();
    }
  }
}
