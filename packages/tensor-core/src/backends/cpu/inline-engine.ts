// The inline engine runs commands on the host's own thread, in slices between which the event loop
// turns. It serves pages without SharedArrayBuffer, and `threads: 0`.

import { DeviceLostError } from '../../errors.js';
import type { Engine, EngineEvents } from './engine.js';
import type { NativeProducts } from './native/native-products.js';
import type { WasmMemory } from './wasm-memory.js';

/** The time of a slice. A page can draw a frame between two slices where commands are short. */
const SLICE_MS = 8;

export function startInline(
  module: WebAssembly.Module,
  memory: WasmMemory,
  events: EngineEvents,
  native: NativeProducts | undefined,
): Engine {
  const { exports } = new WebAssembly.Instance(module, {
    env: {
      memory: memory.memory,
      fence: (id: number) => events.onFence(id),
      now: () => performance.now(),
      ...(native?.bind(native.library, memory.memory) ?? { gemm: () => {}, gemmBf16: () => {} }),
    },
  });
  const runNext = exports.runNext as () => number;
  const turn = turnOfEventLoop();
  let isScheduled = false;
  let isDisposed = false;

  const tryNext = (): boolean => {
    try {
      return !isDisposed && runNext() !== 0;
    } catch (error) {
      isDisposed = true;
      const reason = String(error);
      events.onFailure(
        new DeviceLostError(`cpu: a kernel failed: ${reason}`, { reason, cause: error }),
      );
      return false;
    }
  };
  const slice = () => {
    isScheduled = false;
    const end = performance.now() + SLICE_MS;
    while (tryNext()) {
      if (performance.now() > end) {
        schedule();
        return;
      }
    }
  };
  const schedule = () => {
    if (!isScheduled && !isDisposed) {
      isScheduled = true;
      turn(slice);
    }
  };
  return {
    threads: 0,
    wake: schedule,
    drain: tryNext,
    hold: () => {},
    dispose: async () => {
      isDisposed = true;
    },
  };
}

/**
 * Returns a function that runs a callback after pending events. In a page setTimeout waits 4 ms.
 */
function turnOfEventLoop(): (callback: () => void) => void {
  if (typeof setImmediate === 'function') {
    return (callback) => void setImmediate(callback);
  }
  const channel = new MessageChannel();
  const callbacks: (() => void)[] = [];
  channel.port1.onmessage = () => callbacks.shift()?.();
  return (callback) => {
    callbacks.push(callback);
    channel.port2.postMessage(0);
  };
}
