// A device that runs behind its host: everything queued waits its turn, and kernels of one kind take
// longer. What reads host state in place of the queue, or reuses a buffer too early, shows.

import type { Backend, BackendBuffer, KernelCalls, KernelName } from '@shardweave/tensor-core';

export interface LateBackendOptions {
  /** Kernels that wait before they run, and how long. */
  readonly slow: (kernel: KernelName) => boolean;
  readonly delayMs: number;
}

/** `inner` behind a queue of its own. Disposing it leaves `inner` as it is. */
export function lateBackend(inner: Backend, options: LateBackendOptions): Backend {
  let tail: Promise<unknown> = Promise.resolve();
  const later = <T>(work: () => T | Promise<T>): Promise<T> => {
    const done = tail.then(work);
    tail = done.catch(() => undefined);
    return done;
  };
  const own: Partial<Backend> = {
    free: (buffer: BackendBuffer) => void later(() => inner.free(buffer)),
    write: (buffer, byteOffset, bytes) => {
      const copy = bytes.slice();
      void later(() => inner.write(buffer, byteOffset, copy));
    },
    read: (...call) => later(() => inner.read(...call)),
    copy: (...call) => void later(() => inner.copy(...call)),
    run: <K extends KernelName>(kernel: K, call: KernelCalls[K]) => {
      void later(async () => {
        if (options.slow(kernel)) {
          await new Promise((resolve) => setTimeout(resolve, options.delayMs));
        }
        inner.run(kernel, call);
      });
    },
    sync: () => later(() => inner.sync()),
  };
  return new Proxy(inner, {
    get: (target, name) =>
      name in own ? own[name as keyof Backend] : bound(target, name as keyof Backend),
  });
}

function bound(backend: Backend, name: keyof Backend): unknown {
  const value = backend[name] as unknown;
  return typeof value === 'function' ? value.bind(backend) : value;
}
