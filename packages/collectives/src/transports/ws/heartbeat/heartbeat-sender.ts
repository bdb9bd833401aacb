// The seam between a rank and its heartbeat worker, of Node or of a page, which sends signs of life
// while the rank's own thread computes.

import type { Hello } from '../../../sockets/handshake.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';

export interface HeartbeatSender {
  /**
   * Opens a connection to a peer's listener, for the handshake of role 'heartbeat'. Rejects with
   * OpenError.
   */
  open(url: string): Promise<WireSocket>;
  /** Sends an empty binary message over the connection every heartbeatMs from now on. */
  beat(socket: WireSocket): void;
  /**
   * Listens, on a free port, for peers that can't listen; resolves with 0 where it fails. Absent
   * where the platform can't listen.
   */
  listen?(options: HeartbeatListenOptions): Promise<number>;
  /** Frees the port, at the latest when it resolves; authenticated connections live on. */
  stopListening?(): Promise<void>;
  /** Ends all its connections. */
  close(): Promise<void>;
}

export interface HeartbeatListenOptions {
  readonly host: string;
  /**
   * The reason for turning away a peer although it knows the secret; undefined where it may stay.
   */
  refusalOf(hello: Hello): string | undefined;
  /** Called when a peer is authenticated. */
  onPeer(hello: Hello, socket: WireSocket): void;
}
