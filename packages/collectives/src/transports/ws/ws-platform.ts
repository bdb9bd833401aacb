// What forming a job needs of where it runs: Node opens sockets and listens, a page only opens them.

import type { Hello } from '../../sockets/handshake.js';
import type { WireSocket } from '../../sockets/wire-socket.js';

export interface WsPlatform {
  /** Milliseconds between two tries to open a socket, at most. */
  readonly maxRetryMs: number;
  /** Opens a WebSocket, within `limitMs` where the platform can give up. Rejects with OpenError. */
  open(url: string, limitMs?: number): Promise<OpenedSocket>;
  /** Absent where nobody can listen. */
  listen?(options: ListenOptions): Promise<WsListener>;
  /** Signs of life that don't depend on the rank's own thread; undefined where there is no such thing. */
  startHeartbeats(heartbeatMs: number): Promise<HeartbeatSender | undefined>;
}

export interface HeartbeatSender {
  /** A connection to a peer's listener, for the handshake of role 'heartbeat'. Rejects with OpenError. */
  open(url: string): Promise<WireSocket>;
  /** From now on an empty binary message goes over it every heartbeatMs. */
  beat(socket: WireSocket): void;
  /** Listens for peers that can't, on a free port; 0 where it fails. Absent where nobody can listen. */
  listen?(options: HeartbeatListenOptions): Promise<number>;
  /** Frees the port, at the latest when it resolves; proven connections live on. */
  stopListening?(): Promise<void>;
  /** Ends all its connections. */
  close(): Promise<void>;
}

export interface HeartbeatListenOptions {
  readonly host: string;
  /** As of ListenOptions. */
  refusalOf(hello: Hello): string | undefined;
  /** A peer that has proved itself. */
  onPeer(hello: Hello, socket: WireSocket): void;
}

export interface OpenedSocket {
  readonly socket: WireSocket;
  /** The interface it goes out by, where that is known: a good one to listen on. */
  readonly localHost: string | undefined;
}

/** A socket could not be opened. */
export class OpenError extends Error {
  /** Nobody listens there, as far as one can tell: somebody may in a moment. */
  readonly isEarly: boolean;

  constructor(message: string, { isEarly }: { readonly isEarly: boolean }) {
    super(message);
    this.name = 'OpenError';
    this.isEarly = isEarly;
  }
}

export interface ListenOptions {
  readonly host: string;
  /** 0 takes a free one. */
  readonly port: number;
  /** Why a peer that knows the secret is turned away all the same. */
  refusalOf(hello: Hello): string | undefined;
  /** A peer that has proved itself; `host` is where it comes from. */
  onPeer(hello: Hello, socket: WireSocket, host: string): void;
}

export interface WsListener {
  readonly port: number;
  /** Frees the port; accepted sockets live on, those that have proved nothing end. */
  close(): void;
}
