// The seam between a rank and its heartbeat worker, of Node or of a page: signs of life that go on
// while the rank's own thread computes.

import type { Hello } from '../../../sockets/handshake.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';

export interface HeartbeatSender {
  /**
   * A connection to a peer's listener, for the handshake of role 'heartbeat'. Rejects with
   * OpenError.
   */
  open(url: string): Promise<WireSocket>;
  /** From now on an empty binary message goes over the connection every heartbeatMs. */
  beat(socket: WireSocket): void;
  /**
   * Listens for peers that can't, on a free port; 0 where it fails. Absent where nobody can listen.
   */
  listen?(options: HeartbeatListenOptions): Promise<number>;
  /** Frees the port, at the latest when it resolves; proven connections live on. */
  stopListening?(): Promise<void>;
  /** Ends all its connections. */
  close(): Promise<void>;
}

export interface HeartbeatListenOptions {
  readonly host: string;
  /** Why a peer that knows the secret is turned away all the same. */
  refusalOf(hello: Hello): string | undefined;
  /** A peer has proved itself. */
  onPeer(hello: Hello, socket: WireSocket): void;
}
