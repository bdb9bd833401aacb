// What the heartbeat worker runs in Node. It travels as the text of this function (see
// heartbeat-sender.ts), which is given what else it needs, and uses only what Node has built in: WebSockets
// of its own that know no more than small messages. The handshake is the main thread's, as is the secret.

import type { sortByTls } from '../../../sockets/sort-by-tls.js';
import type { createStrangerGate, StrangerGate } from '../../../sockets/stranger-gate.js';
import type { pskClientOptions, pskServerOptions } from '../../../sockets/tls-psk.js';
import type {
  HeartbeatCommand,
  HeartbeatEvent,
  HeartbeatListening,
  HeartbeatTls,
} from './heartbeat-messages.js';

export interface HeartbeatWorkerData {
  readonly heartbeatMs: number;
}

/** What it shares with the listeners of the main thread. */
export interface HeartbeatParts {
  readonly createStrangerGate: typeof createStrangerGate;
  readonly sortByTls: typeof sortByTls;
  readonly pskServerOptions: typeof pskServerOptions;
  readonly pskClientOptions: typeof pskClientOptions;
}

export function heartbeatMain(parts: HeartbeatParts): void {
  const { parentPort, workerData } = process.getBuiltinModule('node:worker_threads');
  const http = process.getBuiltinModule('node:http');
  const net = process.getBuiltinModule('node:net');
  const https = process.getBuiltinModule('node:https');
  const crypto = process.getBuiltinModule('node:crypto');
  const { heartbeatMs } = workerData as HeartbeatWorkerData;
  type Socket = import('node:net').Socket;
  interface Connection {
    readonly socket: Socket;
    /** Clients mask. */
    readonly isClient: boolean;
    /** A stranger says one thing, its proof. */
    isTrusted: boolean;
    hasSpoken: boolean;
  }
  const port = parentPort!;
  const connections = new Map<number, Connection>();
  const beating = new Set<Connection>();
  // A peer that reads nothing is silent itself: what it has not read by now need not pile up.
  const maxUnreadBytes = 1024;
  const maxHeaderBytes = 16 * 1024;
  const tell = (event: HeartbeatEvent) => port.postMessage(event);

  // ------------------------------------------------------------------- messages

  // A final binary frame, or a close frame; a client masks with zeros.
  const write = ({ socket, isClient }: Connection, opcode: number, bytes: Uint8Array) => {
    const head = [0x80 | opcode, (isClient ? 0x80 : 0) | bytes.length];
    socket.write(Buffer.concat([Buffer.from(isClient ? [...head, 0, 0, 0, 0] : head), bytes]));
  };

  const adopt = (id: number, connection: Connection, head: Buffer) => {
    const { socket } = connection;
    socket.setNoDelay(true);
    socket.setTimeout(0);
    connections.set(id, connection);
    let unread = head;
    let [code, reason] = [1006, 'its connection ended'];
    const take = (data: Buffer) => {
      unread = Buffer.concat([unread, data]);
      while (unread.length >= 2 && !socket.destroyed) {
        const [opcode, length] = [unread[0]! & 0x0f, unread[1]! & 0x7f];
        const headBytes = (unread[1]! & 0x80) === 0 ? 2 : 6;
        if (length > 125 || (opcode !== 2 && opcode !== 8)) {
          socket.destroy(); // nothing of ours says such a thing
          return;
        }
        if (unread.length < headBytes + length) {
          return;
        }
        const mask = unread.subarray(2, headBytes);
        const masked = unread.subarray(headBytes, headBytes + length);
        const bytes = Uint8Array.from(masked, (byte, i) => byte ^ (mask[i & 3] ?? 0));
        unread = unread.subarray(headBytes + length);
        if (opcode === 8) {
          code = bytes.length < 2 ? code : bytes[0]! * 256 + bytes[1]!;
          reason = Buffer.from(bytes.subarray(2)).toString() || reason;
          write(connection, 8, bytes.subarray(0, 2));
          socket.end();
        } else if (connection.hasSpoken && !connection.isTrusted) {
          socket.destroy();
        } else {
          connection.hasSpoken = true;
          tell({ type: 'binary', id, bytes });
        }
      }
    };
    socket.on('data', take);
    socket.on('error', (error) => {
      reason = error.message;
    });
    socket.on('close', () => {
      connections.delete(id);
      beating.delete(connection);
      tell({ type: 'closed', id, code, reason });
    });
    take(Buffer.alloc(0));
  };

  // ------------------------------------------------------------- opened by this rank

  const open = (id: number, url: string, tls: HeartbeatTls) => {
    const { protocol, hostname, port: to, pathname } = new URL(url);
    const { request } = protocol === 'wss:' ? https : http;
    const asked = request({
      ...('key' in tls ? parts.pskClientOptions(tls.key as Uint8Array) : tls),
      host: hostname.replace(/^\[|\]$/g, ''),
      port: to,
      path: pathname,
      agent: false,
      headers: {
        Connection: 'Upgrade',
        Upgrade: 'websocket',
        'Sec-WebSocket-Version': '13',
        'Sec-WebSocket-Key': crypto.randomBytes(16).toString('base64'),
      },
    });
    asked.on('error', (error: NodeJS.ErrnoException) => {
      tell({ type: 'closed', id, code: 1006, reason: error.code ?? error.message });
    });
    asked.on('response', (response) => {
      tell({ type: 'closed', id, code: 1006, reason: `status ${response.statusCode}` });
      asked.destroy();
    });
    asked.on('upgrade', (_response, stream, head) => {
      const socket = stream as Socket;
      tell({ type: 'open', id });
      adopt(id, { socket, isClient: true, isTrusted: true, hasSpoken: false }, head);
    });
    asked.end();
  };

  // --------------------------------------------------------------- opened by others

  let door: import('node:net').Server | undefined;
  let lastAccepted = 0;
  /** By address and port, since TLS hides one socket in another. */
  let gate: StrangerGate<Socket> | undefined;
  const nameOf = (socket: Socket) =>
    `${(socket.remoteAddress ?? 'unknown').replace(/^::ffff:/, '')}:${socket.remotePort}`;
  const refuse = (socket: Socket, reason: string) => {
    const printable = reason.replace(/[^\x20-\x7e]/g, '?').slice(0, 300);
    tell({ type: 'refused', from: nameOf(socket), reason: printable });
    socket.destroy();
  };

  const listen = (options: HeartbeatListening) => {
    const { host, tls, key, mayBePlain } = options;
    const entry = parts.createStrangerGate<Socket>(options, refuse);
    gate = entry;
    const common = { maxHeaderSize: maxHeaderBytes };
    const plain = tls === null ? http.createServer(common) : undefined;
    const secrets = tls ?? (key === null ? undefined : parts.pskServerOptions(key));
    const secure =
      secrets &&
      https.createServer({ ...common, ...secrets } as import('node:https').ServerOptions);
    const both = plain && secure && { plain: mayBePlain ? plain : undefined, secure };
    const listener = both ? net.createServer() : (secure ?? plain)!;
    door = listener;
    listener.on('connection', (socket: Socket) => {
      socket.on('error', () => {});
      entry.enter(nameOf(socket), socket);
      if (both && !socket.destroyed) {
        parts.sortByTls(socket, { ...both, refuse });
      }
    });
    for (const server of [plain, secure]) {
      if (server !== undefined) {
        serve(server, options);
      }
    }
    const onFailed = () => tell({ type: 'listening', port: 0 });
    listener.once('error', onFailed).listen(0, host, () => {
      listener.off('error', onFailed).on('error', () => {});
      tell({ type: 'listening', port: (listener.address() as { port: number }).port });
    });
  };

  const serve = (
    server: import('node:http').Server,
    { allowedOrigins }: Pick<HeartbeatListening, 'allowedOrigins'>,
  ) => {
    server.on('request', ({ socket }) => refuse(socket, 'a request that is no WebSocket'));
    server.on('clientError', (error: NodeJS.ErrnoException, stream) => {
      const isTls = error.code?.startsWith('ERR_SSL_') === true;
      refuse(stream as Socket, isTls ? `no TLS handshake (${error.code})` : error.message);
    });
    server.on('upgrade', ({ headers }, stream, head) => {
      const socket = stream as Socket;
      const { origin, 'sec-websocket-key': key } = headers;
      if (origin !== undefined && !allowedOrigins.includes(origin)) {
        refuse(socket, `origin ${origin} is not allowed`);
      } else if (key === undefined) {
        refuse(socket, 'a request that is no WebSocket');
      } else {
        const accept = crypto
          .createHash('sha1')
          .update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
          .digest('base64');
        socket.write(
          'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
            `Sec-WebSocket-Accept: ${accept}\r\n\r\n`,
        );
        const id = --lastAccepted;
        tell({ type: 'accepted', id, from: nameOf(socket) });
        adopt(id, { socket, isClient: false, isTrusted: false, hasSpoken: false }, head);
      }
    });
  };

  // ------------------------------------------------------------------- commands

  port.on('message', (command: HeartbeatCommand) => {
    if (command.type === 'open') {
      open(command.id, command.url, command.tls);
      return;
    }
    if (command.type === 'listen') {
      listen(command.options);
      return;
    }
    if (command.type === 'stop listening') {
      door?.close();
      for (const socket of gate?.strangers() ?? []) {
        socket.destroy();
      }
      tell({ type: 'stopped listening' });
      return;
    }
    const connection = connections.get(command.id);
    if (connection === undefined) {
      return; // it has closed meanwhile
    }
    const { socket } = connection;
    if (command.type === 'send') {
      write(connection, 2, command.bytes);
    } else if (command.type === 'trust') {
      connection.isTrusted = true;
      gate?.trust(nameOf(socket));
    } else if (command.type === 'beat') {
      beating.add(connection);
    } else if (command.code === undefined) {
      socket.destroy();
    } else {
      const reason = Buffer.from(command.reason).subarray(0, 123);
      write(
        connection,
        8,
        Buffer.concat([Buffer.from([command.code >> 8, command.code & 255]), reason]),
      );
      socket.end();
    }
  });
  setInterval(() => {
    for (const connection of beating) {
      if (connection.socket.writableLength < maxUnreadBytes) {
        write(connection, 2, new Uint8Array(0));
      }
    }
  }, heartbeatMs);
}
