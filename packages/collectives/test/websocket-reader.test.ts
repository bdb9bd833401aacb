// These tests cover the reader of WebSocket frames. TCP may cut its bytes anywhere: between two
// frames, within a header, after a header, within a payload.

import { describe, expect, it } from 'vitest';
import { WebSocketReader } from '../src/sockets/websocket-reader.js';

/** Returns a frame as our listeners send it: final and not masked. */
function frame(payload: Uint8Array): Uint8Array {
  const { length } = payload;
  const head = length < 126 ? [0x82, length] : [0x82, 126, length >> 8, length & 255];
  return Uint8Array.of(...head, ...payload);
}

/**
 * Returns the messages of a reader for these reads, each of which is in memory that is used again.
 */
function messagesOf(reads: readonly Uint8Array[]): string[] {
  const messages: string[] = [];
  const reader = new WebSocketReader(
    {
      onBinary: (bytes) => messages.push(Buffer.from(bytes).toString('hex')),
      room: () => undefined,
      filled: () => {},
      onText: () => {},
      onPing: () => {},
      onPong: () => {},
      onClose: () => {},
    },
    1000,
  );
  for (const read of reads) {
    const lent = read.slice();
    reader.read(lent);
    lent.fill(0xee);
  }
  return messages;
}

describe('frames', () => {
  // The payloads are shorter ones after longer ones and the reverse, empty ones, and two kinds of
  // header.
  const payloads = [36, 32, 0, 1, 5, 0, 130, 3].map((length, i) =>
    Uint8Array.from({ length }, (_, at) => (at * 7 + i) & 255),
  );
  const all = Uint8Array.from(payloads.flatMap((payload) => [...frame(payload)]));
  const expected = payloads.map((payload) => Buffer.from(payload).toString('hex'));

  it('come whole wherever two cuts go through them', () => {
    const wrong: string[] = [];
    for (let first = 0; first <= all.length; first++) {
      for (let second = first; second <= all.length; second++) {
        const reads = [all.subarray(0, first), all.subarray(first, second), all.subarray(second)];
        if (messagesOf(reads).join() !== expected.join()) {
          wrong.push(`${first} and ${second}`);
        }
      }
    }
    expect(wrong).toEqual([]);
  });

  it('come whole in single bytes', () => {
    expect(messagesOf([...all].map((byte) => Uint8Array.of(byte)))).toEqual(expected);
  });
});
