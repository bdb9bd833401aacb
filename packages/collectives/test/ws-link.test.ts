// Here a link runs over a system that takes all bytes at once.

import type { MessageHeader } from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';
import type { WireHandler, WireSocket } from '../src/sockets/wire-socket.js';
import { FrameCodec } from '../src/transports/ws/link/frame.js';
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

describe('a receiver whose buffer the system fills', () => {
  const byteLength = 100_000;
  const call = {
    operation: 'send',
    dtype: 'u8',
    reduceOp: null,
    byteLength,
    root: -1,
    layout: 0,
  } as const;
  const header: MessageHeader = { group: 'world', sequence: 0, phase: 0, call, byteLength };

  /** Makes a link that is amid a message to such a buffer. */
  function filling() {
    let handler: WireHandler | undefined;
    let numStops = 0;
    const socket: WireSocket = {
      unsentBytes: 0,
      setHandler: (given) => {
        handler = given;
      },
      trust: () => {},
      send: () => {},
      sendText: () => {},
      batch: (body) => body(),
      close: () => {},
      terminate: () => {},
      stopFilling: () => {
        numStops++;
      },
    };
    const sink = { posted: undefined, write: () => {}, room: new Uint8Array(byteLength) };
    const nobody = { onText: () => {}, onLost: () => {}, onLeft: () => {} };
    const link = new WsLink(socket, 1, { ...nobody, onMessage: () => sink });
    link.start();
    handler!.onBinary(new FrameCodec().encode(header, new Uint8Array(byteLength)));
    expect(handler!.room!()).toBe(sink.room);
    return { link, handler: handler!, stops: () => numStops };
  }

  it('is given no byte after the end of the link', () => {
    const { handler } = filling();
    handler.onClose(1006, '');
    expect(handler.room!()).toBeUndefined();
  });

  it('is given no byte by a peer that sends what can not be read', () => {
    const { handler, stops } = filling();
    handler.onBinary(new Uint8Array(byteLength + 1));
    expect(handler.room!()).toBeUndefined();
    expect(stops()).toBe(0); // The socket lives until the peer has been told.
  });

  it('has it back while a link that closes still sends', async () => {
    const { link, handler, stops } = filling();
    const sent = link.send(header, new Uint8Array(byteLength))!;
    const closed = link.close('drain');
    expect(stops()).toBe(1);
    handler.onClose(4000, '');
    await Promise.all([sent, closed]);
  });
});
