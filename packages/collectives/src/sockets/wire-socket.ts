// The seam of this folder: one open WebSocket, of Node (by the `ws` library) or of a page. The
// transport over WebSockets is written against it, and against socket-platform.ts, which opens
// sockets.
//
// Ordering: messages arrive in the order in which they were sent, text and binary alike.
// Ownership: bytes are lent to `send` until `written` is called, and to `onBinary` for the duration
// of the call.

export interface WireHandler {
  /**
   * Called with a message of up to WHOLE_MESSAGE_BYTES as a whole; a longer one may come in pieces,
   * in order.
   */
  onBinary(bytes: Uint8Array): void;
  /**
   * The memory to which the next bytes of a message that comes in pieces may be written, instead of
   * passing them to `onBinary`.
   */
  room?(): Uint8Array | undefined;
  /** Called when so many bytes were written there. */
  filled?(byteLength: number): void;
  onText(text: string): void;
  /**
   * Called once, whatever ended the socket: with the peer's code and reason, or with 1006 and what
   * is known.
   */
  onClose(code: number, reason: string): void;
}

export interface WireSocket {
  /**
   * Sets the handler of what arrives. What comes while there is none waits, and is passed to the
   * next one at once, so a socket can change hands without losing a message.
   */
  setHandler(handler: WireHandler | undefined): void;
  /**
   * What only the two ends of its TLS session know, which the proof of the secret covers. Absent
   * without TLS, and where an end is a page, which is not told.
   */
  readonly session?: Uint8Array | undefined;
  /** The bytes that were given to `send`, but not yet to the system. */
  readonly unsentBytes: number;
  /**
   * Notes that the peer is authenticated: messages of up to that many bytes are accepted from it.
   */
  trust(maxMessageBytes: number): void;
  /** Sends bytes. `written` is called once: when they may be changed, or with the error. */
  send(bytes: Uint8Array, written?: (error?: Error | null) => void): void;
  sendText(text: string): void;
  /** Runs `body`, whose messages are sent together where the platform can do that. */
  batch(body: () => void): void;
  /** Sends what is queued, then the code; `onClose` follows. Codes are 1000 or 4000 to 4999. */
  close(code: number, reason: string): void;
  /** Drops the connection without a word; `onClose` follows. */
  terminate(): void;
  /** Resolves, in Node, with whether the peer still answers within so many milliseconds. */
  answers?(limitMs: number): Promise<boolean>;
  /** Stops writing to a handler's room: what arrives goes to `onBinary`. */
  stopFilling?(): void;
  /**
   * Sets, in Node, whether what arrives is read. If not, it waits at its sender, once some buffers
   * are full.
   */
  setReads?(reads: boolean): void;
}

/** A message of up to this many bytes is never delivered in pieces. */
export const WHOLE_MESSAGE_BYTES = 64 * 1024;
