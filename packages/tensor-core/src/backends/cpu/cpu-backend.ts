// The CPU device: WebAssembly SIMD kernels behind the backend seam. The host encodes commands into
// a queue in the linear memory; worker threads (or the host itself, inline) run them in order.

import { OP_COPY } from '../../../assembly/layout.js';
import type { Backend, BackendInfo, BackendTraceSink } from '../../backend.js';
import { DisposedError, requireBufferSize } from '../../errors.js';
import type { KernelCalls, KernelName } from '../../kernel-calls/kernel-calls.js';
import type { BackendBuffer } from '../../view.js';
import type { CommandQueue } from './command-queue.js';
import type { CommandRing } from './command-ring.js';
import { addressOf, type CommandWriter } from './command-writer.js';
import { CpuBuffer } from './cpu-buffer.js';
import { cpuInfo } from './cpu-limits.js';
import * as encoders from './encoders.js';
import type { Engine } from './engine.js';
import type { Heap } from './heap.js';
import type { Room } from './room.js';
import type { Staging } from './staging.js';
import type { WasmMemory } from './wasm-memory.js';

/** The parts a device is made of; createCpuBackend puts them together. */
export interface CpuParts {
  readonly memory: WasmMemory;
  readonly heap: Heap;
  readonly room: Room;
  readonly staging: Staging;
  readonly queue: CommandQueue;
  readonly ring: CommandRing;
  readonly writer: CommandWriter;
  readonly engine: Engine;
  /** Whether matrix products are fused. */
  readonly isFused: boolean;
  /** The library that computes large products, by name, version and core. */
  readonly products: string | undefined;
  /** Whether few rows may be rounded to 8 bits. */
  readonly quantizesRows: boolean;
}

const ENCODERS: {
  readonly [K in KernelName]: (call: KernelCalls[K], writer: CommandWriter) => void;
} = encoders;

/**
 * The version of what a library of the host computes and of how it is cut, on which bits depend.
 * By rule 2 it has the products of attention, too, by rule 3 products of many terms are cut along
 * them, and by rule 4 rows are cut at whole tiles.
 */
const LIBRARY_RULE = 4;
/** The ns that one thread takes to copy a byte, which decide only how far copies are split. */
const COPY_NS_PER_BYTE = 0.1;
/**
 * The largest read that is copied to room of its own first, which no pool's limit counts. A larger
 * one holds the queue up while the host copies it: 16 MiB take 1.7 ms at 10 GB/s.
 */
const MAX_LANDING_BYTES = 16 * 1024 * 1024;

export class CpuBackend implements Backend {
  readonly info: BackendInfo;
  readonly quantizesRows: boolean;
  readonly hostBytes?: (buffer: BackendBuffer) => Uint8Array;
  readonly #parts: CpuParts;
  readonly #buffers = new Set<CpuBuffer>();
  #nextId = 1;
  #dispatches = 0;
  #disposal: Promise<void> | undefined;

  constructor(parts: CpuParts) {
    this.#parts = parts;
    this.quantizesRows = parts.quantizesRows;
    const { isFused, products } = parts;
    const { threads } = parts.engine;
    const library = products === undefined ? '' : `, ${products}`;
    // Memory that is not shared moves as it grows.
    if (threads > 0) {
      this.hostBytes = (buffer) => {
        const from = addressOf(buffer);
        return parts.memory.bytes.subarray(from, from + buffer.byteLength);
      };
    }
    this.info = {
      ...cpuInfo({ threads, memoryBytes: parts.memory.maxBytes }),
      description: `wasm ${isFused ? 'relaxed simd' : 'simd'}, ${threads === 0 ? 'inline' : `${threads} thread${threads === 1 ? '' : 's'}`}${library}`,
      compiledFor: `${isFused ? 'fused products' : 'plain products'}${library && `${library} by rule ${LIBRARY_RULE}`}`,
    };
  }

  get dispatches(): number {
    return this.#dispatches;
  }

  alloc(byteLength: number, label: string): BackendBuffer {
    requireBufferSize(byteLength, { limitBytes: this.info.limits.maxBufferBytes, label });
    if (this.#disposal !== undefined) {
      throw new DisposedError('alloc: the cpu device was disposed.');
    }
    const address = this.#parts.room.reserve(byteLength, label);
    const buffer = new CpuBuffer(this.#nextId++, byteLength, label, address);
    // Whatever was queued so far may use the block under another buffer's name.
    buffer.lastCall = { end: this.#parts.queue.numCommitted };
    this.#buffers.add(buffer);
    this.#parts.room.liveBytes += byteLength;
    return buffer;
  }

  free(buffer: BackendBuffer): void {
    if (this.#disposal !== undefined) {
      return;
    }
    const address = addressOf(buffer);
    const owned = buffer as CpuBuffer;
    owned.isFreed = true;
    this.#buffers.delete(owned);
    this.#parts.room.liveBytes -= owned.byteLength;
    this.#parts.heap.free(address);
  }

  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void {
    const { queue, memory, staging, writer } = this.#parts;
    const to = addressOf(buffer) + byteOffset;
    if (queue.failure !== undefined) {
      return;
    }
    const { end } = (buffer as CpuBuffer).lastCall;
    const piece = staging.maxPieceBytes;
    for (let at = 0; at < bytes.byteLength; at += piece) {
      if (queue.hasRun(end)) {
        memory.bytes.set(at === 0 ? bytes : bytes.subarray(at), to + at);
        return;
      }
      const part = bytes.subarray(at, at + piece);
      writer.call(() => {
        writer
          .start(OP_COPY, 'write')
          .payload(part, [0])
          .int(writer.addressOf(buffer) + byteOffset + at, part.byteLength);
        writer.commit(writer.chunksFor(part.byteLength * COPY_NS_PER_BYTE));
      });
    }
  }

  whenWritable(): Promise<void> {
    return this.#parts.queue.whenFewWait();
  }

  /** Written bytes that wait in host memory for the device. */
  get waitingBytes(): number {
    return this.#parts.queue.waitingBytes;
  }

  async read(
    buffer: BackendBuffer,
    byteOffset: number,
    byteLength: number,
    into = new Uint8Array(byteLength),
  ): Promise<Uint8Array> {
    const { queue, ring, memory, heap, room, writer } = this.#parts;
    if (queue.failure !== undefined) {
      throw queue.failure;
    }
    const from = addressOf(buffer) + byteOffset;
    if (queue.isIdle) {
      ring.reportTrace();
      into.set(memory.bytes.subarray(from, from + byteLength));
      return into;
    }
    if (byteLength > MAX_LANDING_BYTES) {
      const run = () => into.set(memory.bytes.subarray(from, from + byteLength));
      writer.call(() => {
        writer.addressOf(buffer);
        writer.host({ name: 'read', run });
      });
      await queue.fence();
      return into;
    }
    // The bytes go through a copy: when the host looks, later commands may have written here.
    const landing = room.reserve(byteLength, 'read');
    writer.call(() => {
      writer.start(OP_COPY, 'read');
      writer.int(writer.addressOf(buffer) + byteOffset, landing, byteLength);
      writer.commit(writer.chunksFor(byteLength * COPY_NS_PER_BYTE));
    });
    try {
      await queue.fence();
      into.set(memory.bytes.subarray(landing, landing + byteLength));
    } finally {
      heap.free(landing);
    }
    return into;
  }

  readNow(buffer: BackendBuffer, byteOffset: number, into: Uint8Array): void {
    const { queue, memory } = this.#parts;
    if (queue.failure !== undefined) {
      throw queue.failure;
    }
    const from = addressOf(buffer) + byteOffset;
    into.set(memory.bytes.subarray(from, from + into.byteLength));
  }

  settle(buffer: BackendBuffer): Promise<void> | undefined {
    const { queue } = this.#parts;
    addressOf(buffer);
    return queue.hasRun((buffer as CpuBuffer).lastCall.end) ? undefined : queue.fence();
  }

  copy(
    from: BackendBuffer,
    fromOffset: number,
    to: BackendBuffer,
    toOffset: number,
    byteLength: number,
  ): void {
    const { writer } = this.#parts;
    writer.call(() => {
      writer.start(OP_COPY, 'copy');
      writer.int(writer.addressOf(from) + fromOffset, writer.addressOf(to) + toOffset, byteLength);
      writer.commit(writer.chunksFor(byteLength * COPY_NS_PER_BYTE));
    });
  }

  run<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
    this.#dispatches++;
    const { queue, writer } = this.#parts;
    if (queue.failure === undefined) {
      writer.call(() => ENCODERS[kernel](call, writer));
    }
  }

  onMemoryPressure(relieve: () => void): () => void {
    return this.#parts.room.onPressure(relieve);
  }

  flush(): void {
    this.#parts.ring.publish();
  }

  async sync(): Promise<void> {
    const { queue, ring } = this.#parts;
    if (queue.failure === undefined && queue.isIdle) {
      ring.reportTrace();
      return;
    }
    await queue.fence();
  }

  usage(): { readonly bytes: number; readonly buffers: number } {
    return { bytes: this.#parts.room.liveBytes, buffers: this.#buffers.size };
  }

  trace(sink: BackendTraceSink | undefined): void {
    this.#parts.ring.trace(sink);
  }

  dispose(): Promise<void> {
    this.#disposal ??= this.#dispose();
    return this.#disposal;
  }

  async #dispose(): Promise<void> {
    this.#parts.queue.fail(new DisposedError('cpu: the device was disposed.'));
    for (const buffer of this.#buffers) {
      buffer.isFreed = true;
    }
    this.#buffers.clear();
    this.#parts.room.liveBytes = 0;
    await this.#parts.engine.dispose();
  }
}
