// Bytes of a text in UTF-8, checked, in chunks of whole characters.

import { isUtf8 } from 'node:buffer';

/** Bytes that are no character. */
export class NotUtf8Error extends Error {
  /** The number of bytes before the first one that is wrong. */
  readonly offset: number;
  constructor(offset: number) {
    super(`no UTF-8 at byte ${offset}`);
    this.offset = offset;
  }
}

/** Begins some files, and is no part of their text. */
const MARK = Buffer.of(0xef, 0xbb, 0xbf);

/**
 * The same bytes without a byte order mark at their beginning; a character that two chunks share
 * is whole in the second.
 * @throws {NotUtf8Error}
 */
export async function* utf8Chunks(chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let open: Buffer = Buffer.alloc(0);
  let offset = 0;
  for await (const chunk of chunks) {
    const bytes = open.length === 0 ? chunk : Buffer.concat([open, chunk]);
    const whole = bytes.subarray(0, bytes.length - openBytes(bytes));
    if (!isUtf8(whole)) {
      throw new NotUtf8Error(offset + validBytes(whole));
    }
    const isMarked = offset === 0 && whole.subarray(0, MARK.length).equals(MARK);
    const text = isMarked ? whole.subarray(MARK.length) : whole;
    if (text.length > 0) {
      yield text;
    }
    offset += whole.length;
    open = bytes.subarray(whole.length);
  }
  if (open.length > 0) {
    throw new NotUtf8Error(offset);
  }
}

/** The number of last bytes that may be the beginning of a character. */
function openBytes(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back]!;
    if (byte >= 0xc0) {
      const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return back < length ? back : 0;
    }
    if (byte < 0x80) {
      return 0;
    }
  }
  return 0;
}

/** So few bytes are looked at one by one. */
const FEW = 16;

/** The number of bytes before the first that is wrong, by halves. */
function validBytes(bytes: Buffer): number {
  let [valid, end] = [0, bytes.length];
  while (end - valid > FEW) {
    const part = bytes.subarray(valid, (valid + end) >> 1);
    const whole = part.subarray(0, part.length - openBytes(part));
    if (isUtf8(whole)) {
      valid += whole.length;
    } else {
      end = valid + whole.length;
    }
  }
  for (let next = valid + 1; next <= end; next++) {
    valid = isUtf8(bytes.subarray(valid, next)) ? next : valid;
  }
  return valid;
}
