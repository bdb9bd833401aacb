// Keeps freed buffers of one device for reuse, by size class, the oldest buffer first: whatever order
// they came back in, the same requests get the same buffers, and a step finds its cached bind groups
// again. Buffers are handed out whole; one queue runs commands in order, so a freed one may be handed
// out at once.

import type { Backend, BackendBuffer } from './backend.js';
import { LimitError, StateError } from './errors.js';

const SMALL_STEP = 256; // the binding alignment; finer classes would save nothing
const SMALL_LIMIT = 16 * 1024;
const CLASSES_PER_OCTAVE = 8; // at most 12.5 % of a large buffer is unused

/** The bytes of the buffer that serves a request of `byteLength` bytes. */
export function sizeClass(byteLength: number): number {
  if (byteLength <= SMALL_LIMIT) {
    return Math.max(SMALL_STEP, Math.ceil(byteLength / SMALL_STEP) * SMALL_STEP);
  }
  const step = 2 ** Math.floor(Math.log2(byteLength - 1)) / CLASSES_PER_OCTAVE;
  return Math.ceil(byteLength / step) * step;
}

/** The buffers one device has from its backend. */
export class Pool {
  readonly #backend: Backend;
  /** By size class, oldest last. */
  readonly #free = new Map<number, BackendBuffer[]>();
  /** The size class of every buffer, in use and free. */
  readonly #classes = new Map<BackendBuffer, number>();
  /**
   * Most bytes to hold of the backend, in use and free; Infinity. Free buffers are given back, the
   * largest first, where a request would pass it.
   */
  limitBytes = Number.POSITIVE_INFINITY;
  #reservedBytes = 0;
  #inUseBytes = 0;
  #peakInUseBytes = 0;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  /** Bytes of all buffers, in use and free. */
  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  /** Bytes of the buffers in use. */
  get inUseBytes(): number {
    return this.#inUseBytes;
  }

  /** The most bytes in use at once since creation or the last resetPeak: the lowest limit that works. */
  get peakInUseBytes(): number {
    return this.#peakInUseBytes;
  }

  resetPeak(): void {
    this.#peakInUseBytes = this.#inUseBytes;
  }

  /** Number of buffers, in use and free. */
  get bufferCount(): number {
    return this.#classes.size;
  }

  /** @throws {LimitError} where the buffers in use leave no room under limitBytes */
  take(byteLength: number, label: string): BackendBuffer {
    const bytes = Math.min(
      sizeClass(byteLength),
      Math.max(byteLength, this.#backend.info.limits.maxBufferBytes),
    );
    const buffer = this.#free.get(bytes)?.pop() ?? this.#allocate(bytes, label);
    this.#inUseBytes += bytes;
    this.#peakInUseBytes = Math.max(this.#peakInUseBytes, this.#inUseBytes);
    return buffer;
  }

  #allocate(bytes: number, label: string): BackendBuffer {
    if (this.#reservedBytes + bytes > this.limitBytes) this.#makeRoom(bytes, label);
    const buffer = this.#backend.alloc(bytes, label);
    this.#classes.set(buffer, bytes);
    this.#reservedBytes += bytes;
    return buffer;
  }

  #makeRoom(bytes: number, label: string): void {
    if (this.#inUseBytes + bytes > this.limitBytes) {
      throw new LimitError(
        `pool: expected room for ${bytes} ${label} bytes under the limit of ${this.limitBytes}, got ${this.#inUseBytes} in use. Raise the limit, or hold less at once.`,
        { requestedBytes: bytes, limitBytes: this.limitBytes },
      );
    }
    const sizes = [...this.#free.keys()].sort((a, b) => b - a);
    for (const size of sizes) {
      const list = this.#free.get(size)!;
      while (list.length > 0 && this.#reservedBytes + bytes > this.limitBytes) {
        this.#drop(list.shift()!);
      }
    }
  }

  give(buffer: BackendBuffer): void {
    const bytes = this.#classes.get(buffer);
    if (bytes === undefined) {
      throw new StateError(
        'pool: expected one of its own buffers back, got a foreign one. Inside dryRun nothing that was there before may be freed.',
      );
    }
    this.#inUseBytes -= bytes;
    const list = this.#free.get(bytes) ?? [];
    this.#free.set(bytes, list);
    let at = list.length;
    while (at > 0 && list[at - 1]!.id < buffer.id) at -= 1;
    list.splice(at, 0, buffer);
  }

  /** Gives free buffers back to the backend. */
  trim(): void {
    for (const list of this.#free.values()) {
      for (const buffer of list) this.#drop(buffer);
    }
    this.#free.clear();
  }

  /** Gives all buffers back, those in use too. */
  dispose(): void {
    this.#free.clear();
    for (const buffer of [...this.#classes.keys()]) this.#drop(buffer);
    this.#inUseBytes = 0;
  }

  #drop(buffer: BackendBuffer): void {
    this.#reservedBytes -= this.#classes.get(buffer)!;
    this.#classes.delete(buffer);
    this.#backend.free(buffer);
  }
}
