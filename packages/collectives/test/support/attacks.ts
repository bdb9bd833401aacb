// These are attacks on a listening port by strangers, who don't know the secret. Each goes on until
// it is stopped, and keeps its pace whether or not its connections are cut. Those here are behind
// the upgrade, mostly; head-attacks.ts has the others.

import { randomBytes } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { GREETING_BYTES, HELLO_BYTES } from '../../src/sockets/handshake.js';
import { HEAD_ATTACKS } from './head-attacks.js';

export interface AttackTarget {
  readonly port: number;
  /** Calls `act` every `ms` milliseconds. */
  every(ms: number, act: () => void): void;
  /** Opens a connection that is dropped when the attack stops. */
  open(): Socket;
  /**
   * Opens a connection and resolves when it is upgraded to a WebSocket; `origin` is what a page
   * would send.
   */
  upgrade(origin?: string): Promise<Socket>;
  /** Keeps this many connections open at once, and opens a broken one again. */
  keep(count: number, start: () => Promise<Socket> | Socket, then: (socket: Socket) => void): void;
  /** Keeps a socket's buffers full without holding more than that in this process. */
  pour(socket: Socket, piece: Buffer): void;
}

export type Attack = (target: AttackTarget) => void;

const OURS = 'https://ours.example';

/** Begins an attack. The returned function ends it and all its connections. */
export function begin(attack: Attack, port: number, host = '127.0.0.1'): () => void {
  const sockets = new Set<Socket>();
  const timers: NodeJS.Timeout[] = [];
  const open = () => {
    const socket = connect(port, host);
    sockets.add(socket);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket));
    return socket;
  };
  const every: AttackTarget['every'] = (ms, act) => {
    act();
    timers.push(setInterval(act, ms));
  };
  attack({
    port,
    open,
    every,
    pour,
    keep: (count, start, then) => {
      let numOpen = 0;
      const one = async () => {
        const socket = await start();
        if (!socket.destroyed) {
          then(socket);
        }
        socket.once('close', () => {
          numOpen--;
        });
        if (socket.destroyed) {
          numOpen--;
        }
      };
      every(50, () => {
        while (numOpen < count) {
          numOpen++;
          void one();
        }
      });
    },
    upgrade: async (origin) => {
      const socket = open();
      socket.write(upgradeRequest(origin));
      // The greeting comes with the answer or after it; an attacker doesn't read it.
      await new Promise((resolve) => socket.once('data', resolve).once('close', resolve));
      return socket;
    },
  });
  return () => {
    for (const timer of timers) {
      clearInterval(timer);
    }
    for (const socket of sockets) {
      socket.destroy();
    }
  };
}

function upgradeRequest(origin?: string): string {
  const lines = [
    'GET / HTTP/1.1',
    'Host: here',
    'Connection: Upgrade',
    'Upgrade: websocket',
    'Sec-WebSocket-Version: 13',
    `Sec-WebSocket-Key: ${randomBytes(16).toString('base64')}`,
    ...(origin === undefined ? [] : [`Origin: ${origin}`]),
  ];
  return `${lines.join('\r\n')}\r\n\r\n`;
}

/** Returns a client's frame, masked with zeros. `said` replaces its true length. */
function frame(first: number, bytes: Uint8Array, said = BigInt(bytes.length)): Buffer {
  const head = Buffer.alloc(14);
  head[0] = first;
  head[1] = 0x80 | 127;
  head.writeBigUInt64BE(said, 2);
  return Buffer.concat([head, bytes]);
}

const BINARY = 0x82;
const UNFINISHED = 0x02;
const PING = Buffer.concat([Buffer.from([0x89, 0x80 | 125, 0, 0, 0, 0]), Buffer.alloc(125)]);
const MIB = 2 ** 20;

function pour(socket: Socket, piece: Buffer): void {
  const more = () => {
    while (!socket.destroyed && socket.write(piece)) {
      // The loop ends when the system takes no more.
    }
  };
  socket.on('drain', more);
  more();
}

const hello = (bytes: Buffer) => frame(BINARY, bytes);
const wrongHello = () => hello(Buffer.concat([Buffer.from('SWC5'), randomBytes(HELLO_BYTES - 4)]));

const PROBES = [
  'GET / HTTP/1.0\r\n\r\n',
  'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  'SSH-2.0-OpenSSH_9.2\r\n',
  '\x00\x00\x00\x54\xffSMBr\x00\x00\x00\x00',
  'OPTIONS / RTSP/1.0\r\n\r\n',
  'POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000\r\n\r\n',
  'GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n',
  'CONNECT here:443 HTTP/1.1\r\n\r\n',
  '*1\r\n$4\r\nPING\r\n',
  '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
  '\x16\x03\x01\xff\xff\x01',
  '\x15\x03\x01\x00\x02\x02\x28',
  '\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00\x00\x01\x00\x08\x00\x03\x00\x00\x00',
  `GET /${'a'.repeat(20_000)} HTTP/1.1\r\n\r\n`,
  '\r\n\r\n\r\n',
  'QUIT\r\n',
].map((text) => Buffer.from(text, 'latin1'));

/** All attacks. */
export const ATTACKS: Readonly<Record<string, Attack>> = {
  'idle connections, 400 and then 15 a second': (target) => {
    for (let i = 0; i < 400; i++) {
      target.open();
    }
    target.every(66, () => target.open());
  },
  'requests that come a letter at a time, 120': (target) => {
    const request = upgradeRequest();
    target.keep(120, target.open, (socket) => {
      let at = 0;
      const timer = setInterval(() => socket.write(request[at++ % request.length]!), 100);
      socket.once('close', () => clearInterval(timer));
    });
  },
  'handshakes that stop behind the upgrade, 200 at once': (target) => {
    target.keep(
      200,
      () => target.upgrade(),
      () => {},
    );
  },
  'a flood of connections, 2,000 a second': (target) => {
    target.every(5, () => {
      for (let i = 0; i < 10; i++) {
        target.open().once('connect', function drop(this: Socket) {
          this.destroy();
        });
      }
    });
  },
  'wrong proofs, 50 at once': (target) => {
    target.keep(
      50,
      () => target.upgrade(),
      (socket) => socket.write(wrongHello()),
    );
  },
  'frames that announce up to 2^63 - 1 bytes': (target) => {
    const lengths = [2n ** 63n - 1n, 2n ** 53n, 2n ** 32n, 70_000n];
    let at = 0;
    target.keep(
      16,
      () => target.upgrade(),
      (socket) => {
        pour(socket, frame(BINARY, Buffer.alloc(MIB), lengths[at++ % lengths.length]!));
      },
    );
  },
  'messages without end behind a refusal, 8 connections': (target) => {
    const message = hello(Buffer.alloc(1024));
    target.keep(
      8,
      () => target.upgrade(),
      (socket) => {
        socket.write(wrongHello());
        pour(socket, Buffer.concat(Array<Buffer>(64).fill(message)));
      },
    );
  },
  'empty messages without end behind a refusal, 8 connections': (target) => {
    const message = hello(Buffer.alloc(0));
    target.keep(
      8,
      () => target.upgrade(),
      (socket) => {
        socket.write(wrongHello());
        pour(socket, Buffer.concat(Array<Buffer>(4096).fill(message)));
      },
    );
  },
  'pings whose answers nobody reads, 8 connections': (target) => {
    target.keep(
      8,
      () => target.upgrade(),
      (socket) => {
        socket.pause();
        pour(socket, Buffer.concat(Array<Buffer>(512).fill(PING)));
      },
    );
  },
  'messages of 2 MiB by who says an allowed origin': (target) => {
    target.keep(
      8,
      () => target.upgrade(OURS),
      (socket) => {
        pour(socket, hello(Buffer.alloc(2 * MIB - 1)));
      },
    );
  },
  'unfinished messages by who says an allowed origin, 70': (target) => {
    target.keep(
      70,
      () => target.upgrade(OURS),
      (socket) => {
        pour(socket, frame(UNFINISHED, Buffer.alloc(MIB)));
      },
    );
  },
  'what scanners say, 16 kinds': (target) => {
    let at = 0;
    target.every(5, () => target.open().write(PROBES[at++ % PROBES.length]!));
  },
  'a proof that comes a byte at a time': (target) => {
    target.keep(
      60,
      () => target.upgrade(),
      (socket) => {
        const bytes = wrongHello();
        let at = 0;
        const timer = setInterval(() => socket.write(bytes.subarray(at, ++at)), 20);
        socket.once('close', () => clearInterval(timer));
      },
    );
  },
  'fragments without end': (target) => {
    const fragment = frame(0x00, Buffer.alloc(512));
    target.keep(
      16,
      () => target.upgrade(),
      (socket) => {
        socket.write(frame(UNFINISHED, Buffer.alloc(8)));
        pour(socket, Buffer.concat(Array<Buffer>(64).fill(fragment)));
      },
    );
  },
  'text in place of a proof, and more of it': (target) => {
    target.keep(
      16,
      () => target.upgrade(),
      (socket) => {
        pour(socket, Buffer.concat(Array<Buffer>(64).fill(frame(0x81, Buffer.alloc(900, 'a')))));
      },
    );
  },
  'pongs and closes without end': (target) => {
    const pong = Buffer.from([0x8a, 0x80, 0, 0, 0, 0]);
    const close = Buffer.from([0x88, 0x82, 0, 0, 0, 0, 3, 232]);
    target.keep(
      16,
      () => target.upgrade(),
      (socket) => {
        pour(socket, Buffer.concat(Array<Buffer>(4096).fill(Buffer.concat([pong, close]))));
      },
    );
  },
  'a mebibyte in one piece with the upgrade': (target) => {
    const piece = Buffer.concat([Buffer.from(upgradeRequest()), hello(Buffer.alloc(MIB))]);
    target.keep(16, target.open, (socket) => pour(socket, piece));
  },
  'headers of 15 KiB, 100 connections': (target) => {
    const head = `GET / HTTP/1.1\r\nHost: here\r\nX-Long: ${'a'.repeat(15_000)}`;
    target.keep(100, target.open, (socket) => socket.write(head));
  },
  'TLS handshakes that stop half-way, 60 at once': (target) => {
    target.keep(60, target.open, (socket) => socket.write(PROBES[9]!));
  },
  'TLS with another key, 20 at once': (target) => {
    target.keep(20, target.open, (socket) => {
      const tls = connectTls({
        socket,
        ciphers: 'ECDHE-PSK-CHACHA20-POLY1305',
        maxVersion: 'TLSv1.2',
        pskCallback: () => ({ psk: randomBytes(32), identity: 'shardweave' }),
        checkServerIdentity: () => undefined,
      });
      tls.on('error', () => socket.destroy());
    });
  },
  'its own greeting said back, and said again': (target) => {
    target.keep(30, target.open, (socket) => {
      let heard = Buffer.alloc(0);
      const hear = (data: Buffer) => {
        heard = Buffer.concat([heard, data]);
        // The bytes start after the answer and a frame's head.
        const begin = heard.indexOf('\r\n\r\n') + 4 + 2;
        if (begin >= 6 && heard.length >= begin + GREETING_BYTES) {
          socket.off('data', hear);
          pour(socket, hello(heard.subarray(begin, begin + GREETING_BYTES)));
        }
      };
      socket.on('data', hear);
      socket.write(upgradeRequest());
    });
  },
  'connections that are reset when they are open': (target) => {
    target.every(10, () => {
      const socket = target.open();
      socket.once('connect', () => socket.resetAndDestroy());
    });
  },
  ...HEAD_ATTACKS,
};
