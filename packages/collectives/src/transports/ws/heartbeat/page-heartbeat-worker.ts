// The heartbeat worker in a page: a web worker, whose timers go on while the page's own thread
// computes, with native WebSockets of its own. The build bundles it into one text (see
// tooling/workers).

import {
  type HeartbeatCommand,
  MAX_UNREAD_BYTES,
  type PageHeartbeatCommand,
  type PageHeartbeatEvent,
} from './heartbeat-messages.js';

export class PageHeartbeatWorker {
  readonly #tell: (event: PageHeartbeatEvent) => void;
  readonly #sockets = new Map<number, WebSocket>();
  readonly #beating = new Set<WebSocket>();

  constructor(tell: (event: PageHeartbeatEvent) => void) {
    this.#tell = tell;
  }

  obey(command: PageHeartbeatCommand): void {
    switch (command.type) {
      case 'start':
        setInterval(() => this.#beat(), command.heartbeatMs);
        return;
      case 'open':
        this.#open(command.id, command.url);
        return;
      case 'send':
        this.#sockets.get(command.id)?.send(command.bytes as Uint8Array<ArrayBuffer>);
        return;
      case 'beat': {
        const socket = this.#sockets.get(command.id);
        if (socket !== undefined) {
          this.#beating.add(socket);
        }
        return;
      }
      case 'close':
        this.#close(command);
        return;
      case 'look':
        setTimeout(() => this.#tell({ type: 'look' }), command.afterMs);
    }
  }

  /** Ends a connection. The browser refuses a code of undefined where a reason follows it. */
  #close({ id, code, reason }: Extract<HeartbeatCommand, { readonly type: 'close' }>): void {
    const socket = this.#sockets.get(id);
    if (code === undefined) {
      socket?.close();
    } else {
      socket?.close(code, reason);
    }
  }

  #open(id: number, url: string): void {
    const socket = new WebSocket(url);
    socket.binaryType = 'arraybuffer';
    this.#sockets.set(id, socket);
    socket.onopen = () => this.#tell({ type: 'open', id });
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (typeof data === 'string') {
        socket.close();
      } else {
        this.#tell({ type: 'binary', id, bytes: new Uint8Array(data) });
      }
    };
    socket.onclose = ({ code, reason }) => {
      this.#sockets.delete(id);
      this.#beating.delete(socket);
      this.#tell({ type: 'closed', id, code, reason: reason || 'its connection ended' });
    };
  }

  #beat(): void {
    for (const socket of this.#beating) {
      if (socket.bufferedAmount < MAX_UNREAD_BYTES) {
        socket.send(new Uint8Array(0));
      }
    }
  }
}
