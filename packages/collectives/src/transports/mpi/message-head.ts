// The head of a message: its header as JSON, because it is small and read only by the same program
// on another rank, and the payload, where that is small.
//
//   0 bytes of the JSON u32 | 4 JSON | payload

import type { MessageHeader } from '../../transport.js';

/** The largest payload in a head; a larger one travels by itself and needs no copy here. */
export const INLINE_MAX_BYTES = 16 * 1024;

const LENGTH_BYTES = 4;

export function encodeHead(header: MessageHeader, payload: Uint8Array): Uint8Array {
  const text = Buffer.from(JSON.stringify(header));
  const isInline = payload.byteLength <= INLINE_MAX_BYTES;
  const start = LENGTH_BYTES + text.byteLength;
  const head = Buffer.allocUnsafe(start + (isInline ? payload.byteLength : 0));
  head.writeUInt32LE(text.byteLength);
  text.copy(head, LENGTH_BYTES);
  if (isInline) {
    head.set(payload, start);
  }
  return head;
}

/** The header, and the payload where it is small, as a view. */
export function decodeHead(bytes: Uint8Array): { header: MessageHeader; inline: Uint8Array } {
  const head = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = LENGTH_BYTES + head.readUInt32LE();
  const header = JSON.parse(head.toString('utf8', LENGTH_BYTES, start)) as MessageHeader;
  return { header, inline: bytes.subarray(start) };
}
