// Signs of life from a worker thread, over connections of its own: a rank that computes without a turn
// of its event loop goes on saying that it lives. Node only.

import { Worker } from 'node:worker_threads';
import { type HeartbeatCommand, type HeartbeatEvent, heartbeatMain } from './heartbeat-worker.js';
import { Inbox } from './inbox.js';
import type { WireHandler, WireSocket } from './wire-socket.js';
import { OpenError, type HeartbeatSender as Sender } from './ws-platform.js';

// Some compilers wrap functions in a helper that keeps their names; it is absent in the worker.
const SOURCE = `const __name = (f) => f; (${heartbeatMain.toString()})();`;

export interface HeartbeatSenderOptions {
  readonly heartbeatMs: number;
  /** Of `tls.connect`, for wss. */
  readonly tls: object;
}

export class HeartbeatSender implements Sender {
  readonly #worker: Worker;
  readonly #tls: object;
  readonly #sockets: WorkerSocket[] = [];

  constructor(options: HeartbeatSenderOptions) {
    this.#tls = options.tls;
    // Nothing of the host's flags: a loader or an inspector has no business in there.
    this.#worker = new Worker(SOURCE, {
      eval: true,
      execArgv: [],
      name: 'shardweave heartbeat',
      workerData: { heartbeatMs: options.heartbeatMs },
    });
    this.#worker.unref();
    this.#worker.on('message', (event: HeartbeatEvent) => {
      this.#sockets[event.id]!.onEvent(event);
    });
    this.#worker.on('error', (error) => {
      for (const socket of this.#sockets) {
        socket.onEvent({ type: 'closed', id: 0, reason: error.message });
      }
    });
  }

  async open(url: string): Promise<WireSocket> {
    const id = this.#sockets.length;
    const socket = new WorkerSocket(id, (command) => this.#worker.postMessage(command));
    this.#sockets.push(socket);
    this.#worker.postMessage({ type: 'open', id, url, tls: this.#tls } satisfies HeartbeatCommand);
    await socket.opened;
    return socket;
  }

  beat(socket: WireSocket): void {
    (socket as WorkerSocket).beat();
  }

  async close(): Promise<void> {
    await this.#worker.terminate();
  }
}

/** A connection of the worker, for the handshake. */
class WorkerSocket implements WireSocket {
  readonly opened: Promise<void>;
  readonly #id: number;
  readonly #post: (command: HeartbeatCommand) => void;
  readonly #inbox = new Inbox();
  #onOpen: () => void = () => {};
  #onRefused: (error: Error) => void = () => {};

  constructor(id: number, post: (command: HeartbeatCommand) => void) {
    this.#id = id;
    this.#post = post;
    this.opened = new Promise((resolve, reject) => {
      this.#onOpen = resolve;
      this.#onRefused = reject;
    });
  }

  onEvent(event: HeartbeatEvent): void {
    if (event.type === 'open') {
      this.#onOpen();
    } else if (event.type === 'binary') {
      this.#inbox.onBinary(event.bytes);
    } else {
      // Where it was not open yet. Its listener has been heard of, so it may come back.
      this.#onRefused(new OpenError(event.reason, { isEarly: true }));
      this.#inbox.onClose(1006, event.reason);
    }
  }

  readonly unsentBytes = 0;

  trust(): void {}

  setHandler(handler: WireHandler | undefined): void {
    this.#inbox.setHandler(handler);
  }

  send(bytes: Uint8Array): void {
    this.#post({ type: 'send', id: this.#id, bytes });
  }

  sendText(): void {
    throw new Error('a heartbeat connection has no text');
  }

  batch(body: () => void): void {
    body();
  }

  close(): void {
    this.terminate();
  }

  terminate(): void {
    this.#post({ type: 'close', id: this.#id });
  }

  beat(): void {
    this.#post({ type: 'beat', id: this.#id });
  }
}
