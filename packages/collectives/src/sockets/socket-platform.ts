// What Node and pages differ in below a transport: how sockets are opened, and who can listen for
// them.

import type { Hello } from './handshake.js';
import type { WireSocket } from './wire-socket.js';

export interface SocketPlatform {
  /** Milliseconds between two tries to open a socket, at most. */
  readonly maxRetryMs: number;
  /** Opens a WebSocket, within `limitMs` where the platform can give up. Rejects with OpenError. */
  open(url: string, limitMs?: number): Promise<OpenedSocket>;
  /** Absent where nobody can listen. */
  listen?(options: ListenOptions): Promise<SocketListener>;
}

export interface OpenedSocket {
  readonly socket: WireSocket;
  /** The interface that it goes out by, where that is known: a good one to listen on. */
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
  /** A peer has proved itself; `host` is where it comes from. */
  onPeer(hello: Hello, socket: WireSocket, host: string): void;
}

export interface SocketListener {
  readonly port: number;
  /** Frees the port; accepted sockets live on, those that have proved nothing end. */
  close(): void;
}
