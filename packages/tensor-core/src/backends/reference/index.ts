// The reference device runs every kernel at once, as plain float64 loops. It is the specification
// with which the cpu and webgpu devices are compared, and is written to be read, not to be fast.

import type { Backend, BackendInfo, BackendTraceSink } from '../../backend.js';
import { DisposedError, requireBufferSize } from '../../errors.js';
import type { KernelCalls, KernelName } from '../../kernel-calls/kernel-calls.js';
import type { BackendBuffer, View } from '../../view.js';
import { type Open, openBits, openElements } from './elements.js';
import * as kernels from './kernels.js';
import { checkCall } from './rules.js';

/**
 * The byte that fills new memory. It makes NaN in every float dtype, so that no op relies on zeros.
 */
const POISON = 0xff;
/** The largest buffer, which is small enough for any host and large enough for any test. */
const MAX_BUFFER_BYTES = 2 ** 30;

type Bits = (view: View) => Uint16Array | Uint32Array;

const KERNELS: { [K in KernelName]: (call: KernelCalls[K], open: Open, bits: Bits) => void } =
  kernels;

/** Options of createReferenceBackend. */
export interface ReferenceOptions {
  /**
   * The value of limits.maxViewBytes, for tests of ops that cut their operands. The kernels accept
   * views of any size. The default is 1 GiB.
   */
  readonly maxViewBytes?: number;
}

/** Makes a reference backend with memory of its own, which is slow and exact, for tests. */
export function createReferenceBackend(options: ReferenceOptions = {}): Backend {
  return new ReferenceBackend(options.maxViewBytes ?? MAX_BUFFER_BYTES);
}

class ReferenceBackend implements Backend {
  readonly info: BackendInfo;
  readonly #memory = new Map<number, ArrayBuffer>();
  readonly #open: Open = (view) => openElements(this.#bytes(view.buffer), view);
  readonly #bits: Bits = (view) => openBits(this.#bytes(view.buffer), view);
  #nextId = 0;
  #dispatches = 0;
  #sink: BackendTraceSink | undefined;
  #isDisposed = false;

  constructor(maxViewBytes: number) {
    this.info = {
      kind: 'reference',
      description: 'float64 loops',
      isSoftware: true,
      compiledFor: '',
      isHostMemory: true,
      limits: { maxBufferBytes: MAX_BUFFER_BYTES, maxViewBytes },
    };
  }

  get dispatches(): number {
    return this.#dispatches;
  }

  alloc(byteLength: number, label: string): BackendBuffer {
    if (this.#isDisposed) {
      throw new DisposedError('alloc: the reference device was disposed.');
    }
    requireBufferSize(byteLength, { limitBytes: MAX_BUFFER_BYTES, label });
    const buffer = { id: this.#nextId++, byteLength };
    const bytes = new ArrayBuffer(byteLength);
    new Uint8Array(bytes).fill(POISON);
    this.#memory.set(buffer.id, bytes);
    return buffer;
  }

  free(buffer: BackendBuffer): void {
    if (this.#isDisposed) {
      return;
    }
    this.#bytes(buffer);
    this.#memory.delete(buffer.id);
  }

  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void {
    new Uint8Array(this.#bytes(buffer), byteOffset, bytes.length).set(bytes);
  }

  async read(
    buffer: BackendBuffer,
    byteOffset: number,
    byteLength: number,
    into: Uint8Array = new Uint8Array(byteLength),
  ): Promise<Uint8Array> {
    into.set(new Uint8Array(this.#bytes(buffer), byteOffset, byteLength));
    return into;
  }

  copy(
    from: BackendBuffer,
    fromOffset: number,
    to: BackendBuffer,
    toOffset: number,
    byteLength: number,
  ): void {
    this.write(to, toOffset, new Uint8Array(this.#bytes(from), fromOffset, byteLength));
  }

  run<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
    const startMs = this.#sink && performance.now();
    checkCall(kernel, call);
    KERNELS[kernel](call, this.#open, this.#bits);
    this.#dispatches += 1;
    if (this.#sink === undefined || startMs === undefined) {
      return;
    }
    this.#sink({ name: kernel, track: 'device', startMs, endMs: performance.now() });
  }

  flush(): void {}

  async sync(): Promise<void> {
    if (this.#isDisposed) {
      throw new DisposedError('sync: the reference device was disposed.');
    }
  }

  usage(): { readonly bytes: number; readonly buffers: number } {
    let bytes = 0;
    for (const { byteLength } of this.#memory.values()) {
      bytes += byteLength;
    }
    return { bytes, buffers: this.#memory.size };
  }

  trace(sink: BackendTraceSink | undefined): void {
    this.#sink = sink;
  }

  async dispose(): Promise<void> {
    this.#isDisposed = true;
    this.#memory.clear();
  }

  #bytes(buffer: BackendBuffer): ArrayBuffer {
    const bytes = this.#memory.get(buffer.id);
    if (bytes !== undefined) {
      return bytes;
    }
    const what = this.#isDisposed ? 'the device was disposed' : `buffer ${buffer.id} was freed`;
    throw new DisposedError(`reference: expected a live buffer, but ${what}.`);
  }
}
