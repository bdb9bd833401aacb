// Signs of life of a page, from a web worker with connections of its own. A page whose policy forbids
// workers from blobs has none: it is heard of by its links.

import type { HeartbeatCommand, HeartbeatEvent } from './heartbeat-messages.js';
import { pageHeartbeatMain } from './page-heartbeat-worker.js';
import type { WireSocket } from './wire-socket.js';
import { WorkerSockets } from './worker-sockets.js';
import type { HeartbeatSender } from './ws-platform.js';

export class PageHeartbeatSender implements HeartbeatSender {
  readonly #worker: Worker;
  readonly #sockets: WorkerSockets;

  private constructor(worker: Worker) {
    this.#worker = worker;
    const post = (command: HeartbeatCommand) => worker.postMessage(command);
    this.#sockets = new WorkerSockets(post);
  }

  /** Undefined where the page may have no such worker. */
  static async start(heartbeatMs: number): Promise<PageHeartbeatSender | undefined> {
    if (typeof Worker !== 'function') {
      return undefined;
    }
    // Some compilers wrap functions in a helper that keeps their names; it is absent in the worker.
    const source = `const __name = (f) => f; (${pageHeartbeatMain.toString()})(${heartbeatMs});`;
    const url = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
    try {
      const worker = new Worker(url, { name: 'shardweave heartbeat' });
      const sender = new PageHeartbeatSender(worker);
      const hasStarted = await new Promise<boolean>((resolve) => {
        worker.onerror = () => resolve(false);
        worker.onmessage = ({ data }: MessageEvent<HeartbeatEvent>) => {
          if ('id' in data && data.type !== 'accepted') {
            sender.#sockets.onEvent(data);
          } else if (data.type === 'ready') {
            resolve(true);
          }
        };
      });
      worker.onerror = (event) => sender.#sockets.onEnd(event.message);
      return hasStarted ? sender : undefined;
    } catch {
      return undefined; // the page's policy
    } finally {
      URL.revokeObjectURL(url);
    }
  }

  open(url: string): Promise<WireSocket> {
    return this.#sockets.open(url);
  }

  beat(socket: WireSocket): void {
    this.#sockets.beat(socket);
  }

  async close(): Promise<void> {
    this.#worker.terminate();
  }
}
