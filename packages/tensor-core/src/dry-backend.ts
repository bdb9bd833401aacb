// A backend that holds and computes nothing. Code that runs over it shows how much memory it takes.

import type { Backend, BackendInfo } from './backend.js';
import { requireBufferSize } from './errors.js';
import type { KernelCalls, KernelName } from './kernel-calls/kernel-calls.js';
import type { BackendBuffer } from './view.js';

/** Functions that are told what would have been queued. */
export interface DryBackendOptions {
  onKernel?<K extends KernelName>(kernel: K, call: KernelCalls[K]): void;
  /** Called with the bytes of each transfer between the host and the device. */
  onCopy?(byteLength: number): void;
}

/** The backend that a dry backend stands for: an open one, or what is known about it. */
export interface DryModel {
  readonly info: BackendInfo;
  readonly planScratch?: Backend['planScratch'];
}

/**
 * The largest read that gives zeros. Nobody looks at the values of larger ones, and making arrays
 * of zeros for them would cost more than all else.
 */
const ZEROED_BYTES = 64 * 1024;

/**
 * Buffers of the limits of `model` without bytes; kernels do nothing and reads give zeros. Those of
 * more than 64 KiB give the caller's own array as it is or, without one, the same array each time.
 */
export function createDryBackend(model: DryModel, options: DryBackendOptions = {}): Backend {
  let nextId = 0;
  let dispatches = 0;
  let nowhere = new Uint8Array();
  const sizes = new Map<BackendBuffer, number>();
  const { kind, limits } = model.info;
  const { maxBufferBytes } = limits;
  return {
    info: model.info,
    isDry: true,
    // By this a caller knows that a cpu device's bytes are read where they lie. It has none itself.
    ...(kind === 'cpu' && { settle: () => undefined }),
    alloc(byteLength, label) {
      requireBufferSize(byteLength, { limitBytes: maxBufferBytes, label });
      const buffer = { id: nextId++, byteLength };
      sizes.set(buffer, byteLength);
      return buffer;
    },
    free: (buffer) => void sizes.delete(buffer),
    write: (_buffer, _offset, { byteLength }) => options.onCopy?.(byteLength),
    read: async (_buffer, _offset, byteLength, into) => {
      options.onCopy?.(byteLength);
      if (byteLength <= ZEROED_BYTES) {
        return into?.fill(0) ?? new Uint8Array(byteLength);
      }
      if (into === undefined && nowhere.byteLength < byteLength) {
        nowhere = new Uint8Array(byteLength);
      }
      return into ?? nowhere.subarray(0, byteLength);
    },
    copy: () => undefined,
    run: (kernel, call, scratch) => {
      dispatches += 1;
      options.onKernel?.(kernel, call);
      if (scratch !== undefined) {
        model.planScratch?.(kernel, call, scratch);
      }
    },
    ...(model.planScratch === undefined
      ? {}
      : { planScratch: (kernel, call, scratch) => model.planScratch!(kernel, call, scratch) }),
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
