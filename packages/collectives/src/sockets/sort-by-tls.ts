// Serves TLS and unencrypted HTTP on one port: a TLS handshake begins with a byte that no HTTP
// request begins with.

import type { Server } from 'node:http';
import type { Socket } from 'node:net';

export interface TlsDoors {
  readonly secure: Server;
  /**
   * The server to which processes of this machine may speak unencrypted. Absent where they, too,
   * have to speak TLS.
   */
  readonly plain: Server | undefined;
  refuse(socket: Socket, reason: string): void;
}

/** The type of TLS's first record, a handshake. */
export const TLS_FIRST_BYTE = 0x16;

/** Hands a fresh connection on to a server by its first byte, which that server reads again. */
export function sortByTls(socket: Socket, { secure, plain, refuse }: TlsDoors): void {
  socket.once('data', (first: Buffer) => {
    socket.pause();
    const isTls = first[0] === TLS_FIRST_BYTE;
    const isLocal = /^(::ffff:)?127\.|^::1$/.test(socket.remoteAddress ?? '');
    const server = isTls ? secure : isLocal ? plain : undefined;
    if (server === undefined) {
      socket.end('HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.2\r\nConnection: close\r\n\r\n');
      refuse(socket, 'it speaks without TLS');
      return;
    }
    socket.unshift(first);
    server.emit('connection', socket);
    process.nextTick(() => socket.resume());
  });
}
