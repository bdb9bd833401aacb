// The HTTP with which a WebSocket begins (RFC 6455, section 4), read and written here: the bytes of
// a stranger are counted before anything parses them, and nothing but one request for a WebSocket
// is understood. Node's own HTTP would answer any number of requests, and read a body without end.
// It needs nothing but Node.

import { createHash, randomBytes } from 'node:crypto';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { parseHead, readHead } from './http-head.js';
import { type ClientTls, connectOptionsOf } from './tls-psk.js';

/** The longest request of a process of this package, whose own has 165 bytes. */
export const MAX_HEAD_BYTES = 1024;

/** The longest request of a page: a browser sends its cookies for localhost along. */
export const MAX_PAGE_HEAD_BYTES = 16 * 1024;

/** A request for a WebSocket. */
export interface UpgradeRequest {
  /** Its `Sec-WebSocket-Key`. */
  readonly key: string;
  /** The page that asks; undefined where a process does. */
  readonly origin: string | undefined;
}

/** Why a connection is turned away: the status of the answer, and a reason for the log. */
export interface Denial {
  readonly status: 400 | 401 | 426 | 431;
  readonly reason: string;
}

const REQUEST_LINE = 'GET / HTTP/1.1';
export const NO_WEBSOCKET = 'a request that is no WebSocket';

/** Answers `GET / HTTP/1.1` for an upgrade, and whatever else it may be by a denial. */
export function parseUpgrade(text: string): UpgradeRequest | Denial {
  const head = parseHead(text);
  if (head?.line !== REQUEST_LINE || !head.headers.has('host')) {
    return { status: 400, reason: NO_WEBSOCKET };
  }
  const { headers } = head;
  if (headers.has('content-length') || headers.has('transfer-encoding')) {
    return { status: 400, reason: NO_WEBSOCKET };
  }
  const key = headers.get('sec-websocket-key') ?? '';
  const connection = headers.get('connection') ?? '';
  const isUpgrade =
    headers.get('upgrade')?.toLowerCase() === 'websocket' &&
    /(^|,) *upgrade *(,|$)/i.test(connection) &&
    headers.get('sec-websocket-version') === '13' &&
    /^[+/\w]{22}==$/.test(key);
  return isUpgrade ? { key, origin: headers.get('origin') } : { status: 426, reason: NO_WEBSOCKET };
}

const STATUS_TEXTS = {
  400: 'Bad Request',
  401: 'Unauthorized',
  426: 'Upgrade Required\r\nUpgrade: websocket',
  431: 'Request Header Fields Too Large',
} as const;

/** Answers with the status, and ends the connection, whatever else has come over it. */
export function deny(socket: Socket, status: Denial['status']): void {
  socket.once('finish', () => socket.destroy());
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_TEXTS[status]}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n`,
  );
}

/** Answers a request for a WebSocket, by the key that came with it. */
export function acceptUpgrade(socket: Socket, key: string): void {
  socket.write(
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
      `Sec-WebSocket-Accept: ${acceptOf(key)}\r\n\r\n`,
  );
}

/** The text that RFC 6455 appends to a client's key. */
const ACCEPT_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';

function acceptOf(key: string): string {
  return createHash('sha1').update(`${key}${ACCEPT_SUFFIX}`).digest('base64');
}

/** The milliseconds in which a listener has to answer. */
const ANSWER_MS = 5000;

export interface Upgraded {
  /** It is paused. */
  readonly socket: Socket;
  /** What was read after the upgrade. */
  readonly rest: Buffer;
}

/**
 * Opens a WebSocket, without the `ws` library. Rejects with an error whose message is one of Node's
 * codes, where it has one.
 */
export function requestUpgrade(url: string, tls: ClientTls): Promise<Upgraded> {
  const { protocol, hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  const place = { host, port: Number(port) };
  const servername = isIP(host) === 0 ? { servername: host } : {};
  const isSecure = protocol === 'wss:';
  const socket = isSecure
    ? connectTls({ ...place, ...servername, ...connectOptionsOf(tls) })
    : connectTcp(place);
  const key = randomBytes(16).toString('base64');
  return new Promise((resolve, reject) => {
    const fail = (message: string) => {
      clearTimeout(timer);
      socket.destroy();
      reject(new Error(message));
    };
    const timer = setTimeout(() => fail('no answer'), ANSWER_MS);
    socket.on('error', ({ code, message }: NodeJS.ErrnoException) => fail(code ?? message));
    socket.once('close', () => fail('ECONNRESET'));
    socket.once(isSecure ? 'secureConnect' : 'connect', () => {
      socket.write(
        `${REQUEST_LINE}\r\nHost: ${hostname}:${port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
          `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${key}\r\n\r\n`,
      );
      const limits = { start: 'HTTP/1.1 ', maxBytes: MAX_HEAD_BYTES };
      readHead(socket, limits, (head) => {
        const { text, rest } = typeof head === 'string' ? { text: '', rest: undefined } : head;
        const [, status = 'none'] = /^HTTP\/1.1 (\d{3}) /.exec(text) ?? [];
        if (rest === undefined || status !== '101' || !text.includes(`: ${acceptOf(key)}\r\n`)) {
          fail(`status ${status}`);
          return;
        }
        clearTimeout(timer);
        resolve({ socket, rest: Buffer.from(rest) });
      });
    });
  });
}
