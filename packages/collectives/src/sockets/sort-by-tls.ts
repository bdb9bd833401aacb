// One port for two ways to speak: a TLS handshake begins with a byte that no HTTP request has. Heartbeat
// workers are started from text, so this function refers to nothing outside itself.

import type { Server } from 'node:http';
import type { Socket } from 'node:net';

export interface TlsDoors {
  readonly secure: Server;
  /** For processes of this machine. Absent where they, too, have to speak TLS. */
  readonly plain: Server | undefined;
  refuse(socket: Socket, reason: string): void;
}

/** Hands a fresh connection on by its first byte, which is read again there. */
export function sortByTls(socket: Socket, { secure, plain, refuse }: TlsDoors): void {
  socket.once('data', (first: Buffer) => {
    socket.pause();
    const isTls = first[0] === 0x16;
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
