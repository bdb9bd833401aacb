// A worker thread waits for its module and memory, and then runs commands inside wasm until the
// device is disposed. The function refers to nothing outside of it, because workers evaluate its
// source text.

import type { NativeLibrary } from './native/gemm.js';

/** What the host posts to a worker. */
export interface WorkerStart {
  readonly module: WebAssembly.Module;
  readonly memory: WebAssembly.Memory;
  readonly thread: number;
  /** The value of performance.timeOrigin on the host, to which times in traces refer. */
  readonly timeOrigin: number;
  /** The library that computes large products, and the source text of what binds it, bindGemms. */
  readonly native?: { readonly library: NativeLibrary; readonly bind: string };
}

/** What a worker posts back: the id of a fence, 'ready', or why it cannot go on. */
export type WorkerReply = number | 'ready' | { readonly error: string };

interface Port {
  postMessage(reply: WorkerReply): void;
  once?(event: 'message', listener: (start: WorkerStart) => void): void;
  onmessage?: ((event: { data: WorkerStart }) => void) | null;
}

export function workerMain(): void {
  const node = globalThis.process?.getBuiltinModule?.('node:worker_threads');
  const port = (node?.parentPort ?? globalThis) as unknown as Port;
  function run({ module, memory, thread, timeOrigin, native }: WorkerStart): void {
    try {
      const bind = native && new Function(`return (${native.bind})`)();
      const { exports } = new WebAssembly.Instance(module, {
        env: {
          memory,
          fence: (id: number) => port.postMessage(id),
          now: () => performance.timeOrigin + performance.now() - timeOrigin,
          ...(native ? bind(native.library, memory) : { gemm: () => {}, gemmBf16: () => {} }),
        },
      });
      port.postMessage('ready');
      (exports.work as (thread: number) => void)(thread);
    } catch (error) {
      port.postMessage({ error: String(error) });
    }
  }
  if (port.once !== undefined) {
    port.once('message', run);
  } else {
    port.onmessage = (event) => run(event.data);
  }
}
