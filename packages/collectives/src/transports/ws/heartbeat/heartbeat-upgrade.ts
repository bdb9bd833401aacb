// Turns the connections of a heartbeat worker in Node into WebSockets by means of Node's own HTTP,
// because a worker that is started from a text can't import the `ws` library.

import { createHash, randomBytes } from 'node:crypto';
import { request as requestPlain } from 'node:http';
import { request as requestSecure } from 'node:https';
import type { Socket } from 'node:net';
import { type ClientTls, connectOptionsOf } from '../../../sockets/tls-psk.js';

export interface Upgraded {
  readonly socket: Socket;
  /** What was read after the upgrade. */
  readonly head: Buffer;
}

/** The text that RFC 6455 appends to a client's key. */
const ACCEPT_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

/**
 * Opens a WebSocket. Rejects with an error whose message is one of Node's codes, where it has one.
 */
export function requestUpgrade(url: string, tls: ClientTls): Promise<Upgraded> {
  const { protocol, hostname, port, pathname } = new URL(url);
  const isSecure = protocol === 'wss:';
  const request = isSecure ? requestSecure : requestPlain;
  const asked = request({
    ...(isSecure ? connectOptionsOf(tls) : {}),
    host: hostname.replace(/^\[|\]$/g, ''),
    port,
    path: pathname,
    agent: false,
    headers: {
      Connection: 'Upgrade',
      Upgrade: 'websocket',
      'Sec-WebSocket-Version': '13',
      'Sec-WebSocket-Key': randomBytes(16).toString('base64'),
    },
  });
  return new Promise((resolve, reject) => {
    asked.on('error', ({ code, message }: NodeJS.ErrnoException) => {
      reject(new Error(code ?? message));
    });
    asked.on('response', ({ statusCode }) => {
      reject(new Error(`status ${statusCode}`));
      asked.destroy();
    });
    asked.on('upgrade', (_response, stream, head) => resolve({ socket: stream as Socket, head }));
    asked.end();
  });
}

/** Answers a request for a WebSocket, by the key that came with it. */
export function acceptUpgrade(socket: Socket, key: string): void {
  const accept = createHash('sha1').update(`${key}${ACCEPT_SUFFIX}`).digest('base64');
  socket.write(
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
      `Sec-WebSocket-Accept: ${accept}\r\n\r\n`,
  );
}
