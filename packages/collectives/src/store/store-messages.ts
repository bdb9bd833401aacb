// The messages between a store's client and its server: a header in JSON and values in raw bytes,
//   header's bytes, values' bytes (u32 each, little-endian), header, values one after the other
// cut into pieces of at most PIECE_BYTES, so that a socket never takes a large message from a
// stranger.

import type { StoreErrorCode, StoreErrorDetails } from '../errors.js';

/** The longest message on the wire. */
export const PIECE_BYTES = 64 * 1024;

/** The longest header; even lists of keys stay far below it. */
const MAX_HEADER_BYTES = 1024 * 1024;

/** The close code for a client whose job has been started again. */
export const STALE_CODE = 4409;

/** A client's request. `open` comes first, and once. */
export type StoreRequest = { readonly id: number } & (
  | { readonly op: 'open'; readonly runId: string }
  | { readonly op: 'set' | 'delete' | 'compareSet'; readonly key: string }
  | { readonly op: 'add'; readonly key: string; readonly amount: number }
  | { readonly op: 'wait'; readonly keys: readonly string[]; readonly timeoutMs: number }
  | { readonly op: 'get'; readonly key: string; readonly timeoutMs: number }
  | { readonly op: 'check'; readonly keys: readonly string[] }
  | { readonly op: 'numKeys' | 'alive' }
  | { readonly op: 'barrier'; readonly name: string; readonly timeoutMs: number }
);

/**
 * The server's reply. `result` is a number or boolean, where the operation has one; values follow
 * the header.
 */
export interface StoreReply {
  readonly id: number;
  readonly result?: number | boolean;
  readonly error?: StoreErrorDetails & { readonly code: StoreErrorCode; readonly message: string };
}

export interface StoreMessage {
  readonly header: unknown;
  readonly values: readonly Uint8Array[];
}

/** Encodes a message as pieces, which are to be sent in this order. */
export function encodeMessage(
  header: StoreRequest | StoreReply,
  values: readonly Uint8Array[] = [],
): readonly Uint8Array[] {
  const lengths = values.map((value) => value.byteLength);
  const text = Buffer.from(JSON.stringify({ ...header, lengths }));
  const sizes = Buffer.alloc(8);
  sizes.writeUInt32LE(text.length, 0);
  sizes.writeUInt32LE(
    lengths.reduce((sum, length) => sum + length, 0),
    4,
  );
  const whole = Buffer.concat([sizes, text, ...values]);
  const numPieces = Math.ceil(whole.length / PIECE_BYTES);
  return Array.from({ length: numPieces }, (_, i) =>
    whole.subarray(i * PIECE_BYTES, (i + 1) * PIECE_BYTES),
  );
}

/** Puts pieces together again. It throws where they are not a message, or one is too large. */
export class MessageReader {
  readonly #maxValueBytes: number;
  readonly #pieces: Uint8Array[] = [];
  #length = 0;

  /** @param maxValueBytes the most bytes of all values of a message together */
  constructor(maxValueBytes: number) {
    this.#maxValueBytes = maxValueBytes;
  }

  /** Takes a piece, and returns the message that it completes. */
  push(piece: Uint8Array): StoreMessage | undefined {
    this.#pieces.push(piece.slice());
    this.#length += piece.length;
    const first = this.#pieces[0]!;
    if (first.length < 8) {
      throw new RangeError('a message without its sizes');
    }
    const sizes = new DataView(first.buffer, first.byteOffset, 8);
    const [headerBytes, valueBytes] = [sizes.getUint32(0, true), sizes.getUint32(4, true)];
    if (headerBytes > MAX_HEADER_BYTES || valueBytes > this.#maxValueBytes) {
      throw new RangeError(`a message of ${headerBytes} and ${valueBytes} bytes`);
    }
    const total = 8 + headerBytes + valueBytes;
    if (this.#length < total) {
      return undefined;
    }
    const whole = Buffer.concat(this.#pieces);
    this.#pieces.length = 0;
    this.#length = 0;
    if (whole.length > total) {
      throw new RangeError(`${whole.length - total} bytes too many`);
    }
    return parse(whole.subarray(8, 8 + headerBytes), whole.subarray(8 + headerBytes));
  }
}

function parse(text: Buffer, body: Buffer): StoreMessage {
  const header = JSON.parse(text.toString()) as { readonly lengths?: unknown };
  const lengths: readonly unknown[] = Array.isArray(header?.lengths) ? header.lengths : [];
  let offset = 0;
  const values = lengths.map((length) => {
    if (!Number.isInteger(length) || (length as number) < 0) {
      throw new RangeError('a value of no length');
    }
    const value = body.subarray(offset, offset + (length as number));
    offset += length as number;
    return new Uint8Array(value);
  });
  if (offset !== body.length) {
    throw new RangeError(`values of ${offset} bytes in ${body.length}`);
  }
  return { header, values };
}
