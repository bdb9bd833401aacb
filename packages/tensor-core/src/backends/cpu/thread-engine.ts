// The thread engine runs commands on worker threads over a shared memory.

import { CONTROL_BASE, CTL_SIGNAL, CTL_SLEEPERS, CTL_STOP } from '../../../assembly/layout.js';
import { DeviceLostError } from '../../errors.js';
import type { Engine, EngineEvents } from './engine.js';
import type { NativeProducts } from './native/native-products.js';
import { spawnWorker, type WorkerHandle } from './spawn-worker.js';
import type { WasmMemory } from './wasm-memory.js';
import type { WorkerStart } from './worker-main.js';

const SIGNAL = (CONTROL_BASE + CTL_SIGNAL) / 4;
const SLEEPERS = (CONTROL_BASE + CTL_SLEEPERS) / 4;
const STOP = (CONTROL_BASE + CTL_STOP) / 4;

export interface ThreadEngineOptions {
  readonly threads: number;
  readonly workerUrl: string | URL | undefined;
  readonly native: NativeProducts | undefined;
}

/** Starts the workers and waits until all of them run. */
export async function startThreads(
  module: WebAssembly.Module,
  memory: WasmMemory,
  events: EngineEvents,
  { threads, workerUrl, native }: ThreadEngineOptions,
): Promise<Engine> {
  const workers: WorkerHandle[] = [];
  const start = {
    module,
    memory: memory.memory,
    timeOrigin: performance.timeOrigin,
    ...(native && { native: { library: native.library, bind: native.bind.toString() } }),
  };
  const started = Array.from({ length: threads }, (_, thread) =>
    startWorker({ ...start, thread }, events, workerUrl, workers),
  );
  const terminate = async () => {
    Atomics.store(memory.words, STOP, 1);
    Atomics.add(memory.words, SIGNAL, 1);
    Atomics.notify(memory.words, SIGNAL);
    await Promise.all(workers.map((worker) => worker.terminate()));
  };
  try {
    await Promise.all(started);
  } catch (error) {
    await terminate();
    throw error;
  }
  return {
    threads,
    wake: () => {
      // Waking one thread is enough, since it wakes the others when it finds work for several.
      if (Atomics.load(memory.words, SLEEPERS) >= threads) {
        Atomics.add(memory.words, SIGNAL, 1);
        Atomics.notify(memory.words, SIGNAL, 1);
      }
    },
    drain: () => false,
    hold: (isHeld) => workers[0]!.hold(isHeld),
    dispose: terminate,
  };
}

function startWorker(
  start: WorkerStart,
  events: EngineEvents,
  workerUrl: string | URL | undefined,
  workers: WorkerHandle[],
): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (reason: string, cause?: unknown) => {
      const error = new DeviceLostError(`cpu: worker ${start.thread} failed: ${reason}`, {
        reason,
        cause,
      });
      reject(error);
      events.onFailure(error);
    };
    const worker = spawnWorker(
      {
        onReply: (reply) => {
          if (reply === 'ready') {
            worker.hold(false);
            resolve();
          } else if (typeof reply === 'number') {
            events.onFence(reply);
          } else {
            fail(reply.error);
          }
        },
        onError: (error) => fail(error.message, error),
      },
      workerUrl,
    );
    workers.push(worker);
    // The worker keeps the process alive until it is ready, since the caller awaits that.
    worker.hold(true);
    worker.post(start);
  });
}
