// Sends a page's signs of life from a web worker with connections of its own. A page whose policy
// forbids workers from blobs has none, unless it names a file of its own for the worker. Peers then
// hear the page over its links, and its sockets keep their own time.

import { WORKER_TEXT } from '../../../generated/page-heartbeat-worker.js';
import type { PageLooks } from '../../../sockets/page-looks.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { PageHeartbeatCommand, PageHeartbeatEvent } from './heartbeat-messages.js';
import type { HeartbeatSender } from './heartbeat-sender.js';
import { WorkerSockets } from './worker-sockets.js';

export interface PageHeartbeatSenderOptions {
  readonly heartbeatMs: number;
  readonly looks: PageLooks;
  /** See JobOptions. */
  readonly workerUrl: string | URL | undefined;
}

export class PageHeartbeatSender implements HeartbeatSender {
  readonly #worker: Worker;
  readonly #sockets: WorkerSockets;
  readonly #looks: PageLooks;

  private constructor(worker: Worker, looks: PageLooks) {
    this.#worker = worker;
    this.#looks = looks;
    this.#sockets = new WorkerSockets((command) => this.#post(command));
  }

  /**
   * Starts the worker. Undefined where the page may have no such worker. Rejects where `workerUrl`
   * is not the URL of one.
   */
  static async start({
    heartbeatMs,
    looks,
    workerUrl,
  }: PageHeartbeatSenderOptions): Promise<PageHeartbeatSender | undefined> {
    if (typeof Worker !== 'function') {
      return undefined;
    }
    const blob = new Blob([WORKER_TEXT], { type: 'text/javascript' });
    const url = workerUrl === undefined ? URL.createObjectURL(blob) : String(workerUrl);
    try {
      const type = workerUrl === undefined ? 'classic' : 'module';
      const worker = new Worker(url, { name: 'shardweave heartbeat', type });
      const sender = new PageHeartbeatSender(worker, looks);
      const hasStarted = await new Promise<boolean>((resolve) => {
        worker.onerror = () => resolve(false);
        worker.onmessage = ({ data }: MessageEvent<PageHeartbeatEvent>) => {
          if ('id' in data && data.type !== 'accepted') {
            sender.#sockets.onEvent(data);
          } else if (data.type === 'ready') {
            resolve(true);
          } else if (data.type === 'look') {
            looks.run();
          }
        };
      });
      if (!hasStarted && workerUrl !== undefined) {
        throw new Error(`no heartbeat worker could be started from ${url}`);
      }
      if (!hasStarted) {
        return undefined;
      }
      worker.onerror = (event) => {
        looks.setWorker(undefined);
        sender.#sockets.onEnd(event.message);
      };
      sender.#post({ type: 'start', heartbeatMs });
      looks.setWorker((afterMs) => sender.#post({ type: 'look', afterMs }));
      return sender;
    } catch (error) {
      if (workerUrl !== undefined) {
        throw error;
      }
      return undefined; // the page's policy forbids it
    } finally {
      if (workerUrl === undefined) {
        URL.revokeObjectURL(url);
      }
    }
  }

  open(url: string): Promise<WireSocket> {
    return this.#sockets.open(url);
  }

  beat(socket: WireSocket): void {
    this.#sockets.beat(socket);
  }

  async close(): Promise<void> {
    this.#looks.setWorker(undefined);
    this.#worker.terminate();
  }

  #post(command: PageHeartbeatCommand): void {
    this.#worker.postMessage(command);
  }
}
