// Starts a worker thread, with one interface for Node's worker_threads and the browser's Worker.

import { type WorkerReply, type WorkerStart, workerMain } from './worker-main.js';

export interface WorkerEvents {
  onReply(reply: WorkerReply): void;
  onError(error: Error): void;
}

export interface WorkerHandle {
  post(start: WorkerStart): void;
  /** Sets whether the worker keeps the process alive. In a page it never does. */
  hold(isHeld: boolean): void;
  terminate(): Promise<void>;
}

// Some compilers wrap functions in a helper, __name, which the worker's text has to define.
const SOURCE = `const __name = (f) => f; (${workerMain.toString()})();`;

/** Starts a worker from `url`, or from source text that travels with this module. */
export function spawnWorker(events: WorkerEvents, url: string | URL | undefined): WorkerHandle {
  const node = globalThis.process?.getBuiltinModule?.('node:worker_threads');
  return node === undefined ? spawnWeb(events, url) : spawnNode(node, events, url);
}

function spawnNode(
  node: typeof import('node:worker_threads'),
  events: WorkerEvents,
  url: string | URL | undefined,
): WorkerHandle {
  // The worker gets none of the host's flags, since a compute thread needs no loader or inspector.
  const options = { execArgv: [], stdin: false, eval: url === undefined };
  const worker = new node.Worker(url ?? SOURCE, options);
  worker.on('message', (reply: WorkerReply) => events.onReply(reply));
  worker.on('error', (error) => events.onError(toError(error)));
  worker.unref();
  return {
    post: (start) => worker.postMessage(start),
    hold: (isHeld) => (isHeld ? worker.ref() : worker.unref()),
    terminate: async () => {
      worker.removeAllListeners('message');
      await worker.terminate();
    },
  };
}

function spawnWeb(events: WorkerEvents, url: string | URL | undefined): WorkerHandle {
  const blobUrl =
    url === undefined
      ? URL.createObjectURL(new Blob([SOURCE], { type: 'text/javascript' }))
      : undefined;
  const worker = new Worker(url ?? blobUrl!, url === undefined ? {} : { type: 'module' });
  worker.onmessage = (event: MessageEvent<WorkerReply>) => {
    if (blobUrl !== undefined) {
      URL.revokeObjectURL(blobUrl);
    }
    events.onReply(event.data);
  };
  worker.onerror = (event) => events.onError(new Error(event.message || 'worker failed to load'));
  return {
    post: (start) => worker.postMessage(start),
    hold: () => {},
    terminate: async () => worker.terminate(),
  };
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
