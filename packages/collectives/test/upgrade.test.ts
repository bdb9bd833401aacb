// What a listener understands of HTTP before the proof: one short request for a WebSocket, in one
// form. Everything else is answered once, and its connection ended.

import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { type Refusal, serveRendezvous } from '@shardweave/collectives/ws';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { connectOptionsOf, tlsKeyOf } from '../src/sockets/tls-psk.js';
import { SECRET } from './support/ws-harness.js';

const OURS = 'https://ours.example';

let port = 0;
let close = () => {};
let refused: Refusal[] = [];

async function serve(allowedOrigins: readonly string[]): Promise<void> {
  const told: Refusal[] = [];
  const onRefused = (refusal: Refusal) => told.push(refusal);
  const server = await serveRendezvous({ worldSize: 2, secret: SECRET, allowedOrigins, onRefused });
  refused = told;
  port = server.port;
  close = () => server.close();
}

beforeEach(() => serve([OURS]));

afterEach(() => close());

const LINES = [
  'GET / HTTP/1.1',
  'Host: here',
  'Connection: keep-alive, Upgrade',
  'Upgrade: WebSocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: c2hhcmR3ZWF2ZSB0ZXN0cw==',
];

/** Returns a request with lines replaced by their beginnings, and further ones behind them. */
function request(more: readonly string[] = [], replaced: Readonly<Record<string, string>> = {}) {
  const lines = LINES.map((line) => {
    const [, by] = Object.entries(replaced).find(([start]) => line.startsWith(start)) ?? [];
    return by ?? line;
  });
  return `${[...lines.filter((line) => line !== ''), ...more].join('\r\n')}\r\n\r\n`;
}

/** Resolves with the status of the answer, and whether the connection was ended behind it. */
async function answerTo(...pieces: readonly string[]): Promise<number> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  const statuses: number[] = [];
  const answered = new Promise<void>((resolve) => {
    socket.on('data', (bytes: Buffer) => {
      statuses.push(
        ...[...bytes.toString('latin1').matchAll(/HTTP\/1.1 (\d+)/g)].map(([, n]) => Number(n)),
      );
      resolve();
    });
  });
  await once(socket, 'connect');
  for (const piece of pieces) {
    socket.write(piece, 'latin1');
    await new Promise((resolve) => setImmediate(resolve));
  }
  await answered;
  if (statuses[0] !== 101) {
    await ended(socket);
  }
  socket.destroy();
  expect(statuses).toHaveLength(1);
  return statuses[0]!;
}

async function ended(socket: Socket): Promise<void> {
  if (!socket.closed) {
    await once(socket, 'close');
  }
}

describe('a request', () => {
  it.each([
    ['of a process', request()],
    ['of an allowed page', request([`Origin: ${OURS}`])],
    [
      'of an allowed page, with 15 KiB of cookies',
      request([`Cookie: ${'c'.repeat(15_000)}`, `Origin: ${OURS}`]),
    ],
    ['a letter at a time', ...request()],
  ])('a request for a WebSocket is answered: %s', async (_, ...pieces) => {
    expect(await answerTo(...pieces)).toBe(101);
  });

  const denied: readonly (readonly [string, number, string])[] = [
    ['for something else', 426, request([], { Upgrade: 'Upgrade: h2c' })],
    [
      'without the word Upgrade in Connection',
      426,
      request([], { Connection: 'Connection: close' }),
    ],
    ['of another version', 426, request([], { 'Sec-WebSocket-V': 'Sec-WebSocket-Version: 8' })],
    ['without a key', 426, request([], { 'Sec-WebSocket-K': '' })],
    ['with half a key', 426, request([], { 'Sec-WebSocket-K': 'Sec-WebSocket-Key: c2hh' })],
    ['of another page', 401, request(['Origin: https://evil.example'])],
    ['of two origins', 400, request([`Origin: ${OURS}`, 'Origin: https://evil.example'])],
    ['of two origins in one line', 401, request([`Origin: ${OURS}, https://evil.example`])],
    ['with a space before a colon', 400, request(['Origin : https://evil.example'])],
    ['with a folded line', 400, request(['X-Long: a', ' Origin: https://evil.example'])],
    ['with a bare line feed', 400, request(['X-One: 1\nOrigin: https://evil.example'])],
    ['with a bare carriage return', 400, request(['X-One: 1\rOrigin: https://evil.example'])],
    ['with control characters', 400, request(['X-One: \u001b[2J'])],
    ['with letters beyond ASCII', 400, request(['X-One: \u00e9'])],
    ['with a length', 400, request(['Content-Length: 0'])],
    ['with chunks', 400, request(['Transfer-Encoding: chunked'])],
    ['with both', 400, request(['Content-Length: 5', 'Transfer-Encoding: chunked'])],
    ['without a host', 400, request([], { Host: '' })],
    ['of two hosts', 400, request(['Host: there'])],
    ['for another path', 400, request([], { GET: 'GET /secret HTTP/1.1' })],
    ['by a whole URL', 400, request([], { GET: 'GET http://here/ HTTP/1.1' })],
    ['of HTTP 1.0', 400, request([], { GET: 'GET / HTTP/1.0' })],
    ['by POST', 400, request([], { GET: 'POST / HTTP/1.1' })],
    ['with a second one behind it', 400, request() + request()],
    ['with a frame behind it', 400, `${request()}\x82\x81\0\0\0\0x`],
    ['that is none', 400, 'SSH-2.0-OpenSSH_9.2\r\n'],
    ['that is too long for a process', 431, request([`X-Long: ${'a'.repeat(1024)}`])],
    [
      'that is too long for a page',
      431,
      request([`Origin: ${OURS}`, `Cookie: ${'c'.repeat(16_384)}`]),
    ],
    ['without an end', 431, `GET / HTTP/1.1\r\nX-Long: ${'a'.repeat(17_000)}`],
    ['of spaces alone', 431, `GET / HTTP/1.1\r\nX-Long:${' '.repeat(17_000)}\x01`],
  ];

  it.each(denied)('a request %s is answered by %i, once', async (_, status, text) => {
    expect(await answerTo(text)).toBe(status);
    expect(refused).toHaveLength(1);
  });

  it('ends at 1 KiB where no page may come', async () => {
    close();
    await serve([]);
    expect(await answerTo(`GET / HTTP/1.1\r\nX-Long: ${'a'.repeat(1024)}`)).toBe(431);
    expect(await answerTo(request([`Origin: ${OURS}`]))).toBe(401);
  });
});

describe('who talks on behind the answer', () => {
  it('is not read any more: 20,000 requests are one refusal', async () => {
    const socket = connect(port, '127.0.0.1')
      .on('error', () => {})
      .resume();
    socket.write('GET / HTTP/1.1\r\nHost: here\r\n\r\n'.repeat(20_000));
    await ended(socket);
    expect(refused.map(({ reason }) => reason)).toEqual(['a request that is no WebSocket']);
  });
});

describe('refusals', () => {
  it.each(['in the clear', 'over TLS'])(
    'name who has gone by the port he came from: %s',
    async (how) => {
      const tcp = connect(port, '127.0.0.1').on('error', () => {});
      await once(tcp, 'connect');
      const from = `127.0.0.1:${tcp.localPort}`;
      const socket =
        how === 'in the clear'
          ? tcp
          : connectTls({ socket: tcp, ...connectOptionsOf({ pskKey: tlsKeyOf(SECRET) }) });
      socket.write(request());
      await once(socket, 'data');
      tcp.resetAndDestroy();
      while (refused.length === 0) {
        await new Promise((resolve) => setImmediate(resolve));
      }
      expect(refused.map((refusal) => refusal.from)).toEqual([from]);
    },
  );

  it('are cut at 300 characters, whatever a page calls its origin', async () => {
    expect(await answerTo(request([`Origin: https://${'a'.repeat(15_000)}`]))).toBe(401);
    expect(refused.map(({ reason }) => reason.length)).toEqual([300]);
  });

  it('are told some ten times a second, with the number of those left out, in printable words', async () => {
    const close = Buffer.from('\x88\x88\0\0\0\0\x0f\xa0\x1b[2J\xc3\xa9', 'latin1');
    const socket = connect(port, '127.0.0.1').on('error', () => {});
    socket.write(request());
    await once(socket, 'data');
    socket.write(close);
    await ended(socket.resume());
    expect(refused.map(({ reason }) => reason)).toEqual(['it closed: ?[2J?']);
    let numSent = 1;
    const numTold = () => refused.reduce((sum, { numLeftOut }) => sum + 1 + numLeftOut, 0);
    // The tokens come back in time; the last refusal that is told counts all before it.
    while (refused.at(-1)!.numLeftOut === 0) {
      await answerTo('nonsense');
      numSent++;
    }
    expect(numTold()).toBe(numSent);
    expect(refused.length).toBeLessThan(numSent);
  });
});

it('reads nothing behind the answer of a denial, however long its peer goes on', async () => {
  const client = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  client.write('GET /elsewhere HTTP/1.1\r\n\r\n');
  client.on('error', () => {}).resume();
  await once(client, 'end');
  for (let i = 0; i < 1000 && !client.destroyed; i++) {
    client.write('GET / HTTP/1.1\r\n');
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(client.errored).toMatchObject({ code: expect.stringMatching(/ECONNRESET|EPIPE/) });
});
