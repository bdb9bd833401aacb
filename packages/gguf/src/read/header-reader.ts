// Reads the numbers and texts of a header one after another, out of its first bytes. It never asks
// for more bytes than the file has, so a length that lies is found before anything is made for it.

import { GgufModelError } from '../errors.js';

/**
 * The most bytes of a header. Those of vocabularies of 256 thousand tokens have some 15 MB, and no
 * length inside a header of this size can ask for gigabytes.
 */
export const MAX_HEADER_BYTES = 128 * 2 ** 20;

/** Thrown where the header goes on behind the bytes that were read. */
export class MoreBytesNeeded extends Error {
  readonly byteLength: number;

  constructor(byteLength: number) {
    super(`the header needs ${byteLength} bytes`);
    this.byteLength = byteLength;
  }
}

export class HeaderReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #fileBytes: number;
  readonly #decoder = new TextDecoder();
  #at = 0;

  /** @param options.fileBytes the length of the file, of which `bytes` are the first */
  constructor(bytes: Uint8Array, { fileBytes }: { readonly fileBytes: number }) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#fileBytes = fileBytes;
  }

  /** The offset of the next byte. */
  get at(): number {
    return this.#at;
  }

  u8(what: string): number {
    return this.#view.getUint8(this.#skip(1, what));
  }

  u32(what: string): number {
    return this.#view.getUint32(this.#skip(4, what), true);
  }

  /** A length, a count or an offset. */
  u64(what: string): number {
    const at = this.#skip(8, what);
    const value = Number(this.#view.getBigUint64(at, true));
    if (!Number.isSafeInteger(value)) {
      throw new GgufModelError(
        `openGguf: expected ${what} that a file can have, got ${value} at byte ${at}. The file is damaged.`,
      );
    }
    return value;
  }

  /** A number by one of DataView's methods. */
  number<T>(byteLength: number, read: (view: DataView, at: number) => T): T {
    return read(this.#view, this.#skip(byteLength, 'a value'));
  }

  string(what: string): string {
    return this.#decoder.decode(this.bytes(this.u64(`the length of ${what}`), what));
  }

  /** A view of the next bytes. */
  bytes(byteLength: number, what: string): Uint8Array {
    const at = this.#skip(byteLength, what);
    return this.#bytes.subarray(at, at + byteLength);
  }

  /** A reader that begins at the next byte. */
  rest(): HeaderReader {
    const reader = new HeaderReader(this.#bytes, { fileBytes: this.#fileBytes });
    reader.#at = this.#at;
    return reader;
  }

  /** Passes bytes, and returns the offset of their first. */
  #skip(byteLength: number, what: string): number {
    const at = this.#at;
    const end = at + byteLength;
    if (end > this.#fileBytes) {
      throw new GgufModelError(
        `openGguf: expected ${byteLength} bytes of ${what} at byte ${at}, got the end of the file at ${this.#fileBytes}. It is cut off or damaged: get it again.`,
      );
    }
    if (end > MAX_HEADER_BYTES) {
      throw new GgufModelError(
        `openGguf: expected a header of at most ${MAX_HEADER_BYTES} bytes, got ${byteLength} bytes of ${what} at byte ${at}. The file is damaged.`,
      );
    }
    if (end > this.#bytes.byteLength) {
      throw new MoreBytesNeeded(end);
    }
    this.#at = end;
    return at;
  }
}
