// Reads WebSocket frames (RFC 6455) off a connection between two processes of this package. The
// `ws` library's own receiver joins all reads of a message into one new buffer. This one hands long
// messages on piece by piece, so payload is copied once, from the read to where it belongs. It
// supports neither fragments nor extensions.

import { WHOLE_MESSAGE_BYTES } from './wire-socket.js';

export interface WebSocketEvents {
  /**
   * Called with bytes, which are lent. A message longer than WHOLE_MESSAGE_BYTES comes in pieces.
   */
  onBinary(bytes: Uint8Array): void;
  /** See WireHandler. */
  room(): Uint8Array | undefined;
  filled(byteLength: number): void;
  onText(text: string): void;
  onPing(bytes: Uint8Array): void;
  onPong(): void;
  /** Called when the peer's close frame has come. */
  onClose(code: number, reason: string): void;
}

const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;
const FINAL = 0x80;
const MASKED = 0x80;
const MASK_BYTES = 4;
/** Two bytes, up to 8 of length, and 4 of mask. */
const MAX_HEADER_BYTES = 14;
const MAX_CONTROL_BYTES = 125;
const NO_STATUS = 1005;

export class WebSocketReader {
  readonly #events: WebSocketEvents;
  /** The longest message that is accepted. It may be raised when the peer is authenticated. */
  maxMessageBytes: number;
  readonly #head = new Uint8Array(MAX_HEADER_BYTES);
  #headBytes = 0;
  #isInMessage = false;
  #opcode = 0;
  #length = 0;
  #remaining = 0;
  #isMasked = false;
  /** The place in #head where the mask begins. */
  #maskAt = 0;
  /** The bytes so far of a short message that did not come in one read. */
  #whole: Uint8Array | undefined;

  constructor(events: WebSocketEvents, maxMessageBytes: number) {
    this.#events = events;
    this.maxMessageBytes = maxMessageBytes;
  }

  /** Takes what was read. Throws where the bytes are not what a peer of this package sends. */
  read(data: Uint8Array): void {
    let at = 0;
    while (at < data.length || this.#isComplete()) {
      if (!this.#isInMessage) {
        at = this.#readHead(data, at);
        if (!this.#isInMessage || (at === data.length && !this.#isComplete())) {
          return; // the rest comes with a later read
        }
      }
      const end = Math.min(at + this.#remaining, data.length);
      this.#take(data.subarray(at, end));
      at = end;
    }
  }

  /**
   * The memory that the next read may go to, provided that it brings further payload of a long
   * message and nothing else.
   */
  room(): Uint8Array | undefined {
    const isPayload = this.#isInMessage && this.#opcode === BINARY && !this.#isMasked;
    if (!isPayload || this.#length <= WHOLE_MESSAGE_BYTES) {
      return undefined;
    }
    return this.#events.room()?.subarray(0, this.#remaining);
  }

  /** Notes that so many bytes were read into the room. */
  filled(byteLength: number): void {
    this.#remaining -= byteLength;
    this.#isInMessage = this.#remaining > 0;
    this.#events.filled(byteLength);
  }

  /**
   * Whether a message that has just begun is complete: an empty one ends with its header, which may
   * be the last thing in a read.
   */
  #isComplete(): boolean {
    return this.#isInMessage && this.#remaining === 0;
  }

  #readHead(data: Uint8Array, from: number): number {
    const head = this.#head;
    let at = from;
    for (;;) {
      const needed = headBytesOf(head, this.#headBytes);
      if (this.#headBytes === needed) {
        break;
      }
      if (at === data.length) {
        return at;
      }
      head[this.#headBytes++] = data[at++]!;
    }
    this.#begin(head, this.#headBytes);
    this.#headBytes = 0;
    return at;
  }

  #begin(head: Uint8Array, headBytes: number): void {
    const opcode = head[0]! & 0x0f;
    const short = head[1]! & 0x7f;
    const view = new DataView(head.buffer);
    const length =
      short < 126 ? short : short === 126 ? view.getUint16(2) : Number(view.getBigUint64(2));
    if ((head[0]! & 0xf0) !== FINAL) {
      throw new RangeError('a fragment, or an extension that was not agreed on');
    }
    if (!(opcode === TEXT || opcode === BINARY || (opcode >= CLOSE && opcode <= PONG))) {
      throw new RangeError(`opcode ${opcode}`);
    }
    const limit = opcode >= CLOSE ? MAX_CONTROL_BYTES : this.maxMessageBytes;
    if (length > limit) {
      throw new RangeError(`a message of ${length} bytes, over ${limit}`);
    }
    this.#isInMessage = true;
    this.#opcode = opcode;
    this.#length = length;
    this.#remaining = length;
    this.#maskAt = headBytes - MASK_BYTES;
    this.#isMasked =
      (head[1]! & MASKED) !== 0 &&
      head.subarray(this.#maskAt, headBytes).some((byte) => byte !== 0);
  }

  #take(piece: Uint8Array): void {
    if (this.#isMasked) {
      this.#unmask(piece);
    }
    this.#remaining -= piece.length;
    const isLast = this.#remaining === 0;
    if (this.#opcode === BINARY && this.#length > WHOLE_MESSAGE_BYTES) {
      this.#isInMessage = !isLast;
      this.#events.onBinary(piece);
    } else if (piece.length === this.#length) {
      this.#isInMessage = false;
      this.#tell(piece);
    } else {
      this.#whole ??= new Uint8Array(this.#length);
      this.#whole.set(piece, this.#length - this.#remaining - piece.length);
      if (isLast) {
        const whole = this.#whole;
        this.#whole = undefined;
        this.#isInMessage = false;
        this.#tell(whole);
      }
    }
  }

  #tell(bytes: Uint8Array): void {
    switch (this.#opcode) {
      case BINARY:
        this.#events.onBinary(bytes);
        break;
      case TEXT:
        this.#events.onText(new TextDecoder().decode(bytes));
        break;
      case PING:
        this.#events.onPing(bytes);
        break;
      case CLOSE: {
        const code = bytes.length < 2 ? NO_STATUS : bytes[0]! * 256 + bytes[1]!;
        this.#events.onClose(code, new TextDecoder().decode(bytes.subarray(2)));
        break;
      }
      default:
        this.#events.onPong();
    }
  }

  /** Unmasks in place. Links of this package mask with zeros and never get here. */
  #unmask(piece: Uint8Array): void {
    const offset = this.#length - this.#remaining;
    for (let i = 0; i < piece.length; i++) {
      piece[i]! ^= this.#head[this.#maskAt + ((offset + i) & 3)]!;
    }
  }
}

/** The length of the header, as far as its first bytes tell. */
function headBytesOf(head: Uint8Array, known: number): number {
  if (known < 2) {
    return 2;
  }
  const short = head[1]! & 0x7f;
  const lengthBytes = short < 126 ? 0 : short === 126 ? 2 : 8;
  return 2 + lengthBytes + ((head[1]! & MASKED) !== 0 ? MASK_BYTES : 0);
}
