// These are attacks by who does not even ask for a WebSocket: on what a listener reads of HTTP and
// of TLS before the proof. attacks.ts has those behind the upgrade.

import { randomBytes } from 'node:crypto';
import { Duplex } from 'node:stream';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import type { Attack, AttackTarget } from './attacks.js';

const GET = 'GET / HTTP/1.1\r\nHost: here\r\n';
const UPGRADE = `${GET}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c2hhcmR3ZWF2ZSB0ZXN0cw==\r\n`;

/** Says `first` on so many connections at once, and then `more` without end, reading nothing. */
function talk(count: number, first: string, more: string): Attack {
  return (target) => {
    const piece = Buffer.from(more.repeat(Math.ceil(65_536 / more.length)), 'latin1');
    target.keep(count, target.open, (socket) => {
      socket.pause().write(first, 'latin1');
      target.pour(socket, piece);
    });
  };
}

/** Sends a text a byte at a time on so many connections at once. */
function drip(count: number, text: string): Attack {
  return (target) => {
    target.keep(count, target.open, (socket) => {
      let at = 0;
      const timer = setInterval(() => socket.write(text[at++ % text.length]!, 'latin1'), 50);
      socket.once('close', () => clearInterval(timer));
    });
  };
}

/** Says each text on a connection of its own, some hundred a second. */
function recite(texts: readonly string[]): Attack {
  return (target) => {
    let at = 0;
    target.every(5, () => target.open().write(texts[at++ % texts.length]!, 'latin1'));
  };
}

/** Begins TLS on so many connections at once. */
function speakTls(count: number, options: ConnectionOptions): Attack {
  return (target: AttackTarget) => {
    target.keep(count, target.open, (socket) => {
      const tls = connectTls({ socket, checkServerIdentity: () => undefined, ...options });
      tls.on('error', () => socket.destroy());
    });
  };
}

/** A record that announces a ClientHello of 508 bytes, which do not come. */
const HELLO_BEGINS = '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03';
const pskOf = () => ({ psk: randomBytes(32), identity: 'shardweave' });

export const HEAD_ATTACKS: Readonly<Record<string, Attack>> = {
  'pipelined requests without end, 20 connections': talk(20, '', `${GET}\r\n`),
  'pipelined requests without end, 50 connections': talk(50, '', `${GET}\r\n`),
  'posts in chunks without end, 20 connections': talk(
    20,
    'POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n',
    `400\r\n${'a'.repeat(1024)}\r\n`,
  ),
  'one post in chunks of a byte, 76 connections': talk(
    76,
    'POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n',
    '1\r\na\r\n',
  ),
  'a header without end, 50 connections': talk(50, GET, 'X-Long: a\r\n'),
  'one line without end, 50 connections': talk(50, `${GET}X-Long: `, 'a'),
  'idle connections, 76 at once': (target) => target.keep(76, target.open, () => {}),
  'idle connections, 120 at once': (target) => target.keep(120, target.open, () => {}),
  'connections that end at once, 5,000': (target) => {
    let numOpened = 0;
    target.every(10, () => {
      for (let i = 0; i < 50 && numOpened < 5000; i++) {
        numOpened++;
        target.open().end();
      }
    });
  },
  'half a request, on 5,000 connections': (target) => {
    let numOpened = 0;
    target.every(10, () => {
      for (let i = 0; i < 50 && numOpened < 5000; i++) {
        numOpened++;
        target.open().write(UPGRADE.slice(0, 60));
      }
    });
  },
  'requests that two readers read differently': recite([
    `${GET}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${GET}\r\n${UPGRADE}\r\n`,
    `${UPGRADE}Origin: https://ours.example\r\nOrigin: https://evil.example\r\n\r\n`,
    `${UPGRADE}Origin : https://evil.example\r\n\r\n`,
    `${UPGRADE}X-One: 1\nOrigin: https://evil.example\r\n\r\n`,
    `${UPGRADE}Content-Length: 5\r\n\r\nhello`,
    UPGRADE.replace('GET', 'POST'),
  ]),
  'frames with reserved bits, opcodes and lengths that could be shorter': recite(
    ['\xc2\x81\0\0\0\0x', '\x83\x81\0\0\0\0x', '\x82\xfe\0\x01\0\0\0\0x', '\x00\x81\0\0\0\0x'].map(
      (frame) => `${UPGRADE}\r\n${frame}`,
    ),
  ),
  'a TLS hello a byte at a time, 100 connections': drip(100, HELLO_BEGINS + 'x'.repeat(500)),
  'TLS hellos that stop half-way, 100 connections': (target) =>
    target.keep(100, target.open, (socket) => socket.write(HELLO_BEGINS, 'latin1')),
  'TLS hellos without anything behind them, 100 connections': (target) => {
    const socket = new Duplex({
      read: () => {},
      write: (hello: Buffer, _, done) => {
        target.keep(100, target.open, (socket) => socket.write(hello));
        done();
      },
    });
    connectTls({ socket, minVersion: 'TLSv1.3' });
  },
  'TLS with another key, 30 connections': speakTls(30, {
    ciphers: 'TLS_AES_128_GCM_SHA256',
    minVersion: 'TLSv1.3',
    pskCallback: pskOf,
  }),
  'TLS 1.2 with the cipher of before, 30 connections': speakTls(30, {
    ciphers: 'ECDHE-PSK-CHACHA20-POLY1305',
    maxVersion: 'TLSv1.2',
    pskCallback: pskOf,
  }),
  'TLS with certificates, 30 connections': speakTls(30, { rejectUnauthorized: false }),
  'TLS hellos as fast as it goes, 8 connections': talk(8, '', `${HELLO_BEGINS}${'x'.repeat(506)}`),
  'TLS records of 16 KiB without end, 8 connections': talk(
    8,
    HELLO_BEGINS,
    `\x16\x03\x01\x40\x00${'x'.repeat(16_384)}`,
  ),
  'TLS alerts without end, 8 connections': talk(8, HELLO_BEGINS, '\x15\x03\x03\x00\x02\x01\x00'),
  'bare connects, 300 a second': (target) => {
    const start = performance.now();
    let numOpened = 0;
    // A busy machine calls late, so the number follows the time.
    target.every(10, () => {
      for (; numOpened < 0.3 * (performance.now() - start); numOpened++) {
        target.open();
      }
    });
  },
};
