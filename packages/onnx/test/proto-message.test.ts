// The encoding of Protocol Buffers, against bytes that were worked out by hand from its
// specification.

import { expect, it } from 'vitest';
import { ProtoMessage } from '../src/proto-message.js';
import { bytesOf } from './support/read-onnx.ts';

const bytes = async (message: ProtoMessage) => [...(await bytesOf(message))];

it('integers have seven bits a byte, and negative ones ten bytes', async () => {
  expect(await bytes(new ProtoMessage().integer(1, 150))).toEqual([0x08, 0x96, 0x01]);
  expect(await bytes(new ProtoMessage().integer(2, 0).integer(3, 127))).toEqual([16, 0, 24, 127]);
  const minusOne = [...new Array(9).fill(0xff), 1];
  expect(await bytes(new ProtoMessage().integer(1, -1))).toEqual([8, ...minusOne]);
  // 2^40 has 41 bits, which are six groups: five of zeros, and 100000.
  expect(await bytes(new ProtoMessage().integer(20, 2 ** 40))).toEqual([
    ...[0xa0, 0x01],
    ...[0x80, 0x80, 0x80, 0x80, 0x80, 0x20],
  ]);
});

it('floats have four bytes, the lowest first', async () => {
  expect(await bytes(new ProtoMessage().float(2, 1.5))).toEqual([0x15, 0, 0, 0xc0, 0x3f]);
});

it('texts and messages have their length before them', async () => {
  const inner = new ProtoMessage().integer(1, 150);
  const message = new ProtoMessage().text(2, 'tést').nested(3, inner);
  const text = [0x12, 5, 0x74, 0xc3, 0xa9, 0x73, 0x74];
  expect(await bytes(message)).toEqual([...text, 0x1a, 3, 0x08, 0x96, 0x01]);
  expect(message.byteLength).toBe(12);
});

it('bytes that come later have their place and length in all messages around them', async () => {
  let asked = 0;
  const streamed = {
    byteLength: 300,
    *pieces() {
      asked++;
      yield new Uint8Array(100).fill(1);
      yield new Uint8Array(200).fill(2);
    },
  };
  const message = new ProtoMessage()
    .nested(7, new ProtoMessage().nested(9, streamed).integer(1, 1))
    .integer(1, 5);
  expect([asked, message.byteLength]).toEqual([0, 1 + 2 + (1 + 2 + 300) + 2 + 2]);
  expect(await bytes(message)).toEqual([
    ...[0x3a, 0xb1, 0x02], // 305 bytes follow in field 7
    ...[0x4a, 0xac, 0x02], // 300 in field 9
    ...new Array(100).fill(1),
    ...new Array(200).fill(2),
    ...[0x08, 1],
    ...[0x08, 5],
  ]);
});
