// The seam of this folder: one open WebSocket, of Node (by the `ws` library) or of a page. The
// transport over WebSockets and the store are written against it, and against socket-platform.ts,
// which opens sockets.
//
// Ordering. Messages arrive in the order in which they were sent, text and binary alike.
// Ownership. Bytes are lent to `send` until `written` is called, and to `onBinary` for its
// duration.

export interface WireHandler {
  /**
   * A message of up to WHOLE_MESSAGE_BYTES comes whole; a longer one may come in pieces, in order.
   */
  onBinary(bytes: Uint8Array): void;
  /**
   * The memory that the next bytes of a message that comes in pieces may be written to, instead of
   * `onBinary`.
   */
  room?(): Uint8Array | undefined;
  /** So many bytes were written there. */
  filled?(byteLength: number): void;
  onText(text: string): void;
  /**
   * Comes once, whatever ended the socket: with the peer's code and reason, or 1006 and what is
   * known.
   */
  onClose(code: number, reason: string): void;
}

export interface WireSocket {
  /**
   * Names who hears of what arrives. What comes while nobody is named waits and is told at once to
   * the next one, so a socket can change hands without losing a message.
   */
  setHandler(handler: WireHandler | undefined): void;
  /** The bytes that were given to `send`, and not to the system yet. */
  readonly unsentBytes: number;
  /** The peer has proved itself: messages of up to that many bytes are taken from it. */
  trust(maxMessageBytes: number): void;
  /** `written` is called once: when the bytes may be changed, or with the error. */
  send(bytes: Uint8Array, written?: (error?: Error | null) => void): void;
  sendText(text: string): void;
  /** Messages sent by `body` leave together, where the platform can do so. */
  batch(body: () => void): void;
  /** Sends what is queued, then the code; `onClose` follows. Codes are 1000 or 4000 to 4999. */
  close(code: number, reason: string): void;
  /** Drops the connection without a word; `onClose` follows. */
  terminate(): void;
  /** In Node: whether the peer still answers, within so many milliseconds. */
  answers?(limitMs: number): Promise<boolean>;
  /** From now on nothing is written to a handler's room: what arrives goes to `onBinary`. */
  stopFilling?(): void;
  /**
   * In Node: whether what arrives is read. Else it waits at its sender, after some buffers are
   * full.
   */
  setReads?(reads: boolean): void;
  /** In Node: whether the socket keeps the process alive, as it does at first. */
  setKeepsAlive?(keepsAlive: boolean): void;
}

/** Messages of up to this many bytes are never delivered in pieces. */
export const WHOLE_MESSAGE_BYTES = 64 * 1024;
