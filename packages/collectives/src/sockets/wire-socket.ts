// The seam below this transport: one open WebSocket, Node's (`ws`) or a page's native one. Everything
// else in this folder is written against it, but for what opens sockets (ws-platform.ts).
//
// Ordering. Messages arrive in the order in which they were sent, text and binary alike.
// Ownership. Bytes are lent to `send` until `written` is called, and to `onBinary` for its duration.

export interface WireHandler {
  /** A message of up to WHOLE_MESSAGE_BYTES comes whole; a longer one may come in pieces, in order. */
  onBinary(bytes: Uint8Array): void;
  /** Where the next bytes of a message that comes in pieces may be written, instead of `onBinary`. */
  room?(): Uint8Array | undefined;
  /** So many bytes were. */
  filled?(byteLength: number): void;
  onText(text: string): void;
  /** Once, whatever ended it: the peer's code and reason, or 1006 and what is known. */
  onClose(code: number, reason: string): void;
}

export interface WireSocket {
  /**
   * Names who hears of what arrives. What comes while nobody is named waits and is told at once to
   * the next one, so a socket can change hands without losing a message.
   */
  setHandler(handler: WireHandler | undefined): void;
  /** Bytes given to `send` and not yet to the system. */
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
  /** Whether the peer still answers, within so many milliseconds. Node only. */
  answers?(limitMs: number): Promise<boolean>;
  /** From now on nothing is written to a handler's room; what arrives is told to `onBinary`. */
  stopFilling?(): void;
  /** Node only: whether what arrives is read; else it waits at its sender, after some buffers. */
  setReads?(reads: boolean): void;
  /** Node only: whether the socket keeps the process alive, as it does at first. */
  setKeepsAlive?(keepsAlive: boolean): void;
}

/** Messages of up to this many bytes are never delivered in pieces. */
export const WHOLE_MESSAGE_BYTES = 64 * 1024;
