// What the heartbeat worker runs in a page: a web worker, whose timers go on while the page's own thread
// computes. It travels as the text of this function, so it refers to nothing outside.

import type { PageHeartbeatCommand, PageHeartbeatEvent } from './heartbeat-messages.js';

interface WorkerScope {
  onmessage: (event: { readonly data: PageHeartbeatCommand }) => void;
  postMessage(event: PageHeartbeatEvent): void;
}

export function pageHeartbeatMain(heartbeatMs: number): void {
  const scope = globalThis as unknown as WorkerScope;
  const sockets = new Map<number, WebSocket>();
  const beating = new Set<WebSocket>();
  // A peer that reads nothing is silent itself: what it has not read by now need not pile up.
  const maxUnreadBytes = 1024;

  const open = (id: number, url: string) => {
    const socket = new WebSocket(url);
    socket.binaryType = 'arraybuffer';
    sockets.set(id, socket);
    socket.onopen = () => scope.postMessage({ type: 'open', id });
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (typeof data === 'string') {
        socket.close();
      } else {
        scope.postMessage({ type: 'binary', id, bytes: new Uint8Array(data) });
      }
    };
    socket.onclose = ({ code, reason }) => {
      sockets.delete(id);
      beating.delete(socket);
      scope.postMessage({ type: 'closed', id, code, reason: reason || 'its connection ended' });
    };
  };

  scope.onmessage = ({ data: command }) => {
    if (command.type === 'open') {
      open(command.id, command.url);
    } else if (command.type === 'send') {
      sockets.get(command.id)?.send(command.bytes as Uint8Array<ArrayBuffer>);
    } else if (command.type === 'beat') {
      const socket = sockets.get(command.id);
      if (socket !== undefined) {
        beating.add(socket);
      }
    } else if (command.type === 'close') {
      sockets.get(command.id)?.close();
    } else if (command.type === 'look') {
      setTimeout(() => scope.postMessage({ type: 'look' }), command.afterMs);
    }
  };
  setInterval(() => {
    for (const socket of beating) {
      if (socket.bufferedAmount < maxUnreadBytes) {
        socket.send(new Uint8Array(0));
      }
    }
  }, heartbeatMs);
  scope.postMessage({ type: 'ready' });
}
