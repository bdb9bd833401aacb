// Keeps freed buffers of one device for reuse, by size class, the oldest buffer first: whatever order
// they came back in, the same requests get the same buffers, and a step finds its cached bind groups
// again. Buffers are handed out whole; one queue runs commands in order, so a freed one may be handed
// out at once.

import type { Backend, BackendBuffer } from './backend.js';

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
  #reservedBytes = 0;

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  /** Bytes of all buffers, in use and free. */
  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  /** Number of buffers, in use and free. */
  get bufferCount(): number {
    return this.#classes.size;
  }

  take(byteLength: number, label: string): BackendBuffer {
    const bytes = Math.min(
      sizeClass(byteLength),
      Math.max(byteLength, this.#backend.info.limits.maxBufferBytes),
    );
    const reused = this.#free.get(bytes)?.pop();
    if (reused !== undefined) return reused;
    const buffer = this.#backend.alloc(bytes, label);
    this.#classes.set(buffer, bytes);
    this.#reservedBytes += buffer.byteLength;
    return buffer;
  }

  give(buffer: BackendBuffer): void {
    const bytes = this.#classes.get(buffer)!;
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
  }

  #drop(buffer: BackendBuffer): void {
    this.#classes.delete(buffer);
    this.#reservedBytes -= buffer.byteLength;
    this.#backend.free(buffer);
  }
}
