// Sends signs of life from a worker thread, over connections of its own, so a rank that computes
// without a turn of its event loop still shows that it lives. Signs for peers that can't listen go
// over connections that those open, so the worker listens for them while a job forms. Node only.

import { Worker } from 'node:worker_threads';
import { WORKER_TEXT } from '../../../generated/node-heartbeat-worker.js';
import { authenticateJoiner, REFUSED_CODE } from '../../../sockets/authenticate.js';
import { listenerPolicyOf } from '../../../sockets/listen-security.js';
import type { NodeSockets } from '../../../sockets/node-sockets.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatCommand, HeartbeatEvent } from './heartbeat-messages.js';
import type { HeartbeatListenOptions, HeartbeatSender } from './heartbeat-sender.js';
import { WorkerSockets } from './worker-sockets.js';

export interface NodeHeartbeatSenderOptions {
  readonly heartbeatMs: number;
  readonly sockets: NodeSockets;
  /** See JobOptions. */
  readonly workerUrl: string | URL | undefined;
}

export class NodeHeartbeatSender implements HeartbeatSender {
  readonly #options: NodeHeartbeatSenderOptions;
  readonly #worker: Worker;
  readonly #sockets: WorkerSockets;
  #onListening: (port: number) => void = () => {};
  #onStopped: () => void = () => {};
  #hasEnded = false;
  #onAccepted: (event: Extract<HeartbeatEvent, { readonly type: 'accepted' }>) => void = () => {};

  constructor(options: NodeHeartbeatSenderOptions) {
    const { heartbeatMs, sockets, workerUrl } = options;
    this.#options = options;
    // The worker gets none of the process's flags, because it has no use for a loader or an
    // inspector.
    const isText = workerUrl === undefined;
    const setUp = { execArgv: [], name: 'shardweave heartbeat', eval: isText };
    this.#worker = new Worker(isText ? WORKER_TEXT : new URL(workerUrl), setUp);
    this.#worker.unref();
    this.#sockets = new WorkerSockets((command) => this.#post(command), sockets.clientTls);
    this.#worker.on('message', (event: HeartbeatEvent) => this.#onEvent(event));
    this.#worker.on('error', (error) => this.#sockets.onEnd(error.message));
    this.#worker.on('exit', () => {
      this.#hasEnded = true;
      this.#onListening(0);
      this.#onStopped();
    });
    this.#post({ type: 'start', heartbeatMs });
  }

  open(url: string): Promise<WireSocket> {
    return this.#sockets.open(url);
  }

  beat(socket: WireSocket): void {
    this.#sockets.beat(socket);
  }

  listen({ host, refusalOf, onPeer }: HeartbeatListenOptions): Promise<number> {
    const { security } = this.#options.sockets;
    const { secret, onRefused } = security;
    const policy = listenerPolicyOf(security);
    const { proofMs } = policy.limits;
    this.#onAccepted = async ({ id, from, session }) => {
      const socket = this.#sockets.accept(id, session);
      try {
        const hello = await authenticateJoiner(socket, { secret, proofMs, refusalOf });
        socket.trust(0);
        onPeer(hello, socket);
      } catch (error) {
        const reason = (error as Error).message;
        onRefused?.({ from, reason });
        socket.close(REFUSED_CODE, reason);
      }
    };
    this.#post({ type: 'listen', host, policy });
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
      this.#onAccepted(event);
    } else if (event.type === 'refused') {
      this.#options.sockets.security.onRefused?.(event.turnedAway);
    } else {
      this.#sockets.onEvent(event);
    }
  }
}
