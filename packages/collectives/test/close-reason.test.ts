// The reason in a close frame has room for 123 bytes; a longer one is cut, and never within a
// character.

import { once } from 'node:events';
import type { AddressInfo, Socket } from 'node:net';
import { expect, it } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { closeReasonBytes } from '../src/sockets/close-reason.js';
import { FrameWriter } from '../src/sockets/frame-writer.js';
import { NodeSocket } from '../src/sockets/node-socket.js';

it('is cut at whole characters', () => {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const cut = (reason: string) => decoder.decode(closeReasonBytes(reason));
  expect(cut('gone')).toBe('gone');
  expect(cut('x'.repeat(124))).toBe('x'.repeat(123));
  expect(cut('\u00e9'.repeat(100))).toBe('\u00e9'.repeat(61));
  expect(cut(`x${'\u{1f600}'.repeat(40)}`)).toBe(`x${'\u{1f600}'.repeat(30)}`);
});

it.each(['a socket', 'a worker'] as const)(
  'the reason that %s sends is read by others',
  async (who) => {
    const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
    server.on('connection', (socket, request) => {
      const connection = request.socket as Socket;
      if (who === 'a socket') {
        new NodeSocket(socket, { connection }).close(4401, '\u00e9'.repeat(100));
      } else {
        new FrameWriter(connection, false).close(4401, '\u00e9'.repeat(100));
        connection.end();
      }
    });
    await once(server, 'listening');
    const client = new WebSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`);
    const [code, reason] = await once(client, 'close');
    expect([code, reason.toString()]).toEqual([4401, '\u00e9'.repeat(61)]);
    server.close();
  },
);
