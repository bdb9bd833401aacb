// How Node and pages differ below a transport: the way to open sockets, and whether the process can
// listen for them.

import type { Hello } from './handshake.js';
import type { WireSocket } from './wire-socket.js';

export interface SocketPlatform {
  /** The most milliseconds between two tries to open a socket. */
  readonly maxRetryMs: number;
  /** Opens a WebSocket, within `limitMs` where the platform can give up. Rejects with OpenError. */
  open(url: string, limitMs?: number): Promise<OpenedSocket>;
  /** Listens for peers; absent where the platform can't listen. */
  listen?(options: ListenOptions): Promise<SocketListener>;
}

export interface OpenedSocket {
  readonly socket: WireSocket;
  /** The address of the interface that it goes out by, where known: a good one to listen on. */
  readonly localHost: string | undefined;
}

/** A socket could not be opened. */
export class OpenError extends Error {
  /** Whether nothing seems to listen there yet, so that a later try may succeed. */
  readonly isEarly: boolean;

  constructor(message: string, { isEarly }: { readonly isEarly: boolean }) {
    super(message);
    this.name = 'OpenError';
    this.isEarly = isEarly;
  }
}

export interface ListenOptions {
  readonly host: string;
  /** The port; 0 takes a free one. */
  readonly port: number;
  /**
   * The reason for turning away a peer although it knows the secret; undefined where it may stay.
   */
  refusalOf(hello: Hello): string | undefined;
  /** Called when a peer is authenticated; `host` is where it comes from. */
  onPeer(hello: Hello, socket: WireSocket, host: string): void;
}

export interface SocketListener {
  readonly port: number;
  /** Frees the port. Accepted sockets live on, and those that are not authenticated end. */
  close(): void;
}
