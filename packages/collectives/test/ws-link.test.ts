// Here a link runs over a system that takes all bytes at once.

import type { MessageHeader } from '@shardweave/collectives';
import { expect, it } from 'vitest';
import type { WireSocket } from '../src/sockets/wire-socket.js';
import { WsLink } from '../src/transports/ws/link/ws-link.js';

it('hands over about 4 MiB in a turn of the event loop, and all of it in the end', async () => {
  let sentBytes = 0;
  const greedy: WireSocket = {
    unsentBytes: 0,
    setHandler: () => {},
    trust: () => {},
    send: (bytes, written) => {
      sentBytes += bytes.byteLength;
      if (written !== undefined) {
        queueMicrotask(() => written());
      }
    },
    sendText: () => {},
    batch: (body) => body(),
    close: () => {},
    terminate: () => {},
  };
  const nobody = {
    onMessage: () => null as never,
    onText: () => {},
    onLost: () => {},
    onLeft: () => {},
  };
  const link = new WsLink(greedy, 1, nobody);
  const payload = new Uint8Array(20 * 2 ** 20);
  const { byteLength } = payload;
  const call = {
    operation: 'send',
    dtype: 'u8',
    reduceOp: null,
    byteLength,
    root: -1,
    layout: 0,
  } as const;
  const header: MessageHeader = { group: 'world', sequence: 0, phase: 0, call, byteLength };
  const sent = link.send(header, payload);
  let mostInATurn = 0;
  let before = 0;
  let isSent = false;
  void sent!.then(() => {
    isSent = true;
  });
  while (!isSent) {
    await new Promise((resolve) => setImmediate(resolve));
    mostInATurn = Math.max(mostInATurn, sentBytes - before);
    before = sentBytes;
  }
  expect(sentBytes).toBeGreaterThanOrEqual(byteLength);
  // The limit is the bound, one chunk more, and headers.
  expect(mostInATurn).toBeLessThanOrEqual(5.1 * 2 ** 20);
});
