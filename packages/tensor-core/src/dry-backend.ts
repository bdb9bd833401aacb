// A backend that holds and computes nothing: what runs over it shows how much memory it would take.

import type { Backend } from './backend.js';
import type { BackendBuffer } from './view.js';

/** Buffers of the real backend's limits without bytes; kernels do nothing and reads give zeros. */
export function createDryBackend(real: Backend): Backend {
  let nextId = 0;
  let dispatches = 0;
  const sizes = new Map<BackendBuffer, number>();
  return {
    info: real.info,
    alloc(byteLength) {
      const buffer = { id: nextId++, byteLength };
      sizes.set(buffer, byteLength);
      return buffer;
    },
    free: (buffer) => void sizes.delete(buffer),
    write: () => undefined,
    read: async (_buffer, _offset, byteLength, into) => into?.fill(0) ?? new Uint8Array(byteLength),
    copy: () => undefined,
    run: (kernel, call, scratch) => {
      dispatches += 1;
      if (scratch !== undefined) {
        real.planScratch?.(kernel, call, scratch);
      }
    },
    flush: () => undefined,
    sync: async () => undefined,
    usage: () => ({
      bytes: [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0),
      buffers: sizes.size,
    }),
    get dispatches() {
      return dispatches;
    },
    trace: () => undefined,
    dispose: async () => sizes.clear(),
  };
}
