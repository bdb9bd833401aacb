// One port for two ways to speak: a TLS handshake begins with a byte that no HTTP request has.

import type { Server } from 'node:http';
import type { Socket } from 'node:net';

export interface TlsDoors {
  readonly secure: Server;
  /**
   * What processes of this machine may speak to in the clear. Absent where they, too, have to speak
   * TLS.
   */
  readonly plain: Server | undefined;
  refuse(socket: Socket, reason: string): void;
}

/** The type of TLS's first record, a handshake. */
export const TLS_FIRST_BYTE = 0x16;

/** Hands a fresh connection on by its first byte, which is read again there. */
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
