// Signs of life from a worker thread, over connections of its own: a rank that computes without a turn
// of its event loop goes on saying that it lives. To peers that can't listen they go over connections
// that those open, so the worker listens for them while a job forms. Node only.

import { Worker } from 'node:worker_threads';
import type { Refusal } from '../../../sockets/acceptor.js';
import { challenge, REFUSED_CODE } from '../../../sockets/prove.js';
import { sortByTls } from '../../../sockets/sort-by-tls.js';
import { createStrangerGate } from '../../../sockets/stranger-gate.js';
import { pskClientOptions, pskServerOptions } from '../../../sockets/tls-psk.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatListenOptions, HeartbeatSender as Sender } from '../ws-platform.js';
import type {
  HeartbeatCommand,
  HeartbeatEvent,
  HeartbeatListening,
  HeartbeatTls,
} from './heartbeat-messages.js';
import { heartbeatMain } from './heartbeat-worker.js';
import { WorkerSockets } from './worker-sockets.js';

// Some compilers wrap functions in a helper that keeps their names; it is absent in the worker.
const PARTS = { createStrangerGate, sortByTls, pskServerOptions, pskClientOptions };
const TEXTS = Object.entries(PARTS).map(([name, part]) => `${name}: ${part}`);
const SOURCE = `const __name = (f) => f; (${heartbeatMain})({ ${TEXTS.join(', ')} });`;

export interface HeartbeatSenderOptions {
  readonly heartbeatMs: number;
  readonly secret: string;
  readonly tls: HeartbeatTls;
  readonly listening: Omit<HeartbeatListening, 'host'>;
  readonly onRefused: ((refusal: Refusal) => void) | undefined;
}

export class HeartbeatSender implements Sender {
  readonly #options: HeartbeatSenderOptions;
  readonly #worker: Worker;
  readonly #sockets: WorkerSockets;
  #onListening: (port: number) => void = () => {};
  #onStopped: () => void = () => {};
  #hasEnded = false;
  #onAccepted: (id: number, from: string) => void = () => {};

  constructor(options: HeartbeatSenderOptions) {
    this.#options = options;
    // Nothing of the host's flags: a loader or an inspector has no business in there.
    this.#worker = new Worker(SOURCE, {
      eval: true,
      execArgv: [],
      name: 'shardweave heartbeat',
      workerData: { heartbeatMs: options.heartbeatMs },
    });
    this.#worker.unref();
    this.#sockets = new WorkerSockets((command) => this.#post(command), options.tls);
    this.#worker.on('message', (event: HeartbeatEvent) => this.#onEvent(event));
    this.#worker.on('error', (error) => this.#sockets.onEnd(error.message));
    this.#worker.on('exit', () => {
      this.#hasEnded = true;
      this.#onListening(0);
      this.#onStopped();
    });
  }

  open(url: string): Promise<WireSocket> {
    return this.#sockets.open(url);
  }

  beat(socket: WireSocket): void {
    this.#sockets.beat(socket);
  }

  listen({ host, refusalOf, onPeer }: HeartbeatListenOptions): Promise<number> {
    const { secret, listening, onRefused } = this.#options;
    this.#onAccepted = async (id, from) => {
      const socket = this.#sockets.accept(id);
      try {
        const hello = await challenge(socket, { secret, proofMs: listening.proofMs, refusalOf });
        socket.trust(0);
        onPeer(hello, socket);
      } catch (error) {
        const reason = (error as Error).message;
        onRefused?.({ from, reason });
        socket.close(REFUSED_CODE, reason);
      }
    };
    this.#post({ type: 'listen', options: { ...listening, host } });
    return new Promise((resolve) => {
      this.#onListening = resolve;
    });
  }

  stopListening(): Promise<void> {
    if (this.#hasEnded) {
      return Promise.resolve(); // the job failed, and closed it
    }
    this.#post({ type: 'stop listening' });
    return new Promise((resolve) => {
      this.#onStopped = resolve;
    });
  }

  async close(): Promise<void> {
    await this.#worker.terminate();
  }

  #post(command: HeartbeatCommand): void {
    this.#worker.postMessage(command);
  }

  #onEvent(event: HeartbeatEvent): void {
    if (event.type === 'listening') {
      this.#onListening(event.port);
    } else if (event.type === 'stopped listening') {
      this.#onStopped();
    } else if (event.type === 'accepted') {
      this.#onAccepted(event.id, event.from);
    } else if (event.type === 'refused') {
      this.#options.onRefused?.({ from: event.from, reason: event.reason });
    } else {
      this.#sockets.onEvent(event);
    }
  }
}
