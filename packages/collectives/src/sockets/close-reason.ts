// The reason in a WebSocket's close frame, for which RFC 6455 leaves 123 bytes.

/** A close frame has at most 125 bytes; two of them are the code's. */
const MAX_REASON_BYTES = 123;

/**
 * The reason's bytes, cut where they are too many, and never within a character: a page ends a
 * connection whose reason is no UTF-8 as broken.
 */
export function closeReasonBytes(reason: string): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(MAX_REASON_BYTES);
  const { written } = new TextEncoder().encodeInto(reason, bytes);
  return bytes.subarray(0, written);
}
