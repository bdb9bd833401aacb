// What the heartbeat worker runs. It travels as the text of this function (see heartbeat-sender.ts), so
// it refers to nothing outside and uses only what Node has built in: a WebSocket client of its own that
// knows no more than small messages. The handshake is the main thread's, as is the secret.

/** `id` names a connection, chosen by the main thread. */
export type HeartbeatCommand =
  | { readonly type: 'open'; readonly id: number; readonly url: string; readonly tls: object }
  | { readonly type: 'send'; readonly id: number; readonly bytes: Uint8Array }
  | { readonly type: 'beat'; readonly id: number }
  | { readonly type: 'close'; readonly id: number };

export type HeartbeatEvent =
  | { readonly type: 'open' | 'closed'; readonly id: number; readonly reason: string }
  | { readonly type: 'binary'; readonly id: number; readonly bytes: Uint8Array };

export interface HeartbeatWorkerData {
  readonly heartbeatMs: number;
}

export function heartbeatMain(): void {
  const { parentPort, workerData } = process.getBuiltinModule('node:worker_threads');
  const http = process.getBuiltinModule('node:http');
  const https = process.getBuiltinModule('node:https');
  const crypto = process.getBuiltinModule('node:crypto');
  const { heartbeatMs } = workerData as HeartbeatWorkerData;
  type Socket = import('node:net').Socket;
  const port = parentPort!;
  const sockets = new Map<number, Socket>();
  const beating = new Set<Socket>();
  // A peer that reads nothing is silent itself: what it has not read by now need not pile up.
  const maxUnreadBytes = 1024;
  const tell = (event: HeartbeatEvent) => port.postMessage(event);

  // A final binary frame, or a close frame, masked with zeros.
  const frameOf = (opcode: number, bytes: Uint8Array): Buffer =>
    Buffer.concat([Buffer.from([0x80 | opcode, 0x80 | bytes.length, 0, 0, 0, 0]), bytes]);
  const beat = frameOf(2, new Uint8Array(0));

  const open = (id: number, url: string, tls: object) => {
    const { protocol, hostname, port: to, pathname } = new URL(url);
    const { request } = protocol === 'wss:' ? https : http;
    const asked = request({
      ...tls,
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
      tell({ type: 'closed', id, reason: error.code ?? error.message });
    });
    asked.on('response', (response) => {
      tell({ type: 'closed', id, reason: `status ${response.statusCode}` });
      asked.destroy();
    });
    asked.on('upgrade', (_response, stream, head) => {
      const socket = stream as Socket;
      socket.setNoDelay(true);
      socket.setTimeout(0);
      sockets.set(id, socket);
      tell({ type: 'open', id, reason: '' });
      read(id, socket, head);
    });
    asked.end();
  };

  const read = (id: number, socket: Socket, head: Buffer) => {
    let unread = head;
    let reason = 'its connection ended';
    const take = (data: Buffer) => {
      unread = Buffer.concat([unread, data]);
      while (unread.length >= 2 && unread.length >= 2 + (unread[1]! & 0x7f)) {
        const [opcode, length] = [unread[0]! & 0x0f, unread[1]!];
        const bytes = Uint8Array.from(unread.subarray(2, 2 + length));
        unread = unread.subarray(2 + length);
        if (length > 125 || (opcode !== 2 && opcode !== 8)) {
          socket.destroy(); // a listener of ours says nothing like it
        } else if (opcode === 8) {
          reason = Buffer.from(bytes.subarray(2)).toString() || reason;
          socket.end(frameOf(8, bytes.subarray(0, 2)));
        } else {
          tell({ type: 'binary', id, bytes });
        }
      }
    };
    socket.on('data', take);
    socket.on('error', (error) => {
      reason = error.message;
    });
    socket.on('close', () => {
      sockets.delete(id);
      beating.delete(socket);
      tell({ type: 'closed', id, reason });
    });
    take(Buffer.alloc(0));
  };

  port.on('message', (command: HeartbeatCommand) => {
    if (command.type === 'open') {
      open(command.id, command.url, command.tls);
      return;
    }
    const socket = sockets.get(command.id);
    if (socket === undefined) {
      return; // it has closed meanwhile
    }
    if (command.type === 'send') {
      socket.write(frameOf(2, command.bytes));
    } else if (command.type === 'beat') {
      beating.add(socket);
    } else {
      socket.destroy();
    }
  });
  setInterval(() => {
    for (const socket of beating) {
      if (socket.writableLength < maxUnreadBytes) {
        socket.write(beat);
      }
    }
  }, heartbeatMs);
}
