// This device runs behind its host: everything queued waits its turn, and kernels of one kind take
// longer. Code that reads host state too early, or reuses a buffer too early, gives wrong results
// on it.

import type { Backend, BackendBuffer, KernelCalls, KernelName } from '@shardweave/tensor-core';

export interface LateBackendOptions {
  /** Whether kernels of this name wait before they run. */
  readonly slow: (kernel: KernelName) => boolean;
  /**
   * How long such kernels wait, in turns of the event loop. In each turn the host goes on as far as
   * it can without them, however fast the machine is.
   */
  readonly numTurns: number;
  /** Called with each kernel when it runs, not when it is queued. */
  readonly onRun?: (kernel: KernelName) => void;
  /** Called at each write with the number of kernels that wait or run before it. */
  readonly onWrite?: (numWaiting: number) => void;
  /**
   * Breaks the device, to show that a test would notice: writes overtake what waits. The default is
   * false.
   */
  readonly isWritingAtOnce?: boolean;
  /** Whether the host can use the device's memory itself. The default is as with `inner`. */
  readonly isHostMemory?: boolean;
  /**
   * Breaks the device in another way: its memory is said to be settled while commands wait. The
   * default is false.
   */
  readonly isSettledAtOnce?: boolean;
  /** How many written bytes may wait when whenWritable resolves. By default any number may. */
  readonly fewBytes?: number;
  /** Called at each write with the written bytes that wait, including its own. */
  readonly onWaitingBytes?: (waitingBytes: number) => void;
}

/** Puts `inner` behind a queue. Disposing the result leaves `inner` as it is. */
export function lateBackend(inner: Backend, options: LateBackendOptions): Backend {
  let tail: Promise<unknown> = Promise.resolve();
  let numWaiting = 0;
  let waitingBytes = 0;
  const { fewBytes = Number.POSITIVE_INFINITY } = options;
  const later = <T>(work: () => T | Promise<T>): Promise<T> => {
    const done = tail.then(work);
    tail = done.catch(() => undefined);
    return done;
  };
  const own: { -readonly [K in keyof Backend]?: Backend[K] | undefined } = {
    free: (buffer: BackendBuffer) => void later(() => inner.free(buffer)),
    write: (buffer, byteOffset, bytes) => {
      options.onWrite?.(numWaiting);
      if (options.isWritingAtOnce === true) {
        return inner.write(buffer, byteOffset, bytes);
      }
      const copy = bytes.slice();
      waitingBytes += copy.byteLength;
      options.onWaitingBytes?.(waitingBytes);
      void later(() => {
        inner.write(buffer, byteOffset, copy);
        waitingBytes -= copy.byteLength;
      });
    },
    whenWritable: async () => {
      while (waitingBytes > fewBytes) {
        await new Promise((resolve) => setImmediate(resolve));
      }
    },
    read: (...call) => later(() => inner.read(...call)),
    copy: (...call) => void later(() => inner.copy(...call)),
    run: <K extends KernelName>(kernel: K, call: KernelCalls[K]) => {
      numWaiting += 1;
      void later(async () => {
        for (let turn = 0; options.slow(kernel) && turn < options.numTurns; turn++) {
          await new Promise((resolve) => setImmediate(resolve));
        }
        options.onRun?.(kernel);
        inner.run(kernel, call);
        numWaiting -= 1;
      });
    },
    sync: () => later(() => inner.sync()),
    settle: (buffer) =>
      options.isSettledAtOnce === true
        ? inner.settle!(buffer)
        : later(async () => inner.settle!(buffer)),
    ...(options.isHostMemory === false ? { hostBytes: undefined, settle: undefined } : {}),
  };
  return new Proxy(inner, {
    get: (target, name) =>
      name in own ? own[name as keyof Backend] : bound(target, name as keyof Backend),
  });
}

/** Returns `inner` as a device whose memory the host cannot use itself, as a GPU's. */
export function withoutHostMemory(inner: Backend): Backend {
  return new Proxy(inner, {
    get: (target, name) =>
      name === 'hostBytes' || name === 'settle' ? undefined : bound(target, name as keyof Backend),
  });
}

function bound(backend: Backend, name: keyof Backend): unknown {
  const value = backend[name] as unknown;
  return typeof value === 'function' ? value.bind(backend) : value;
}
