// Memory that all ranks of a job can read: what this rank registered, under numbers by which its
// peers know it, and what each peer announced of its own. A buffer is announced through a port, and
// a message that lies in it comes through a ring, so the message may come first.

import type { SharedHeap } from './shared-heap.js';

/** The number of the heap. The buffers that a rank has registered have numbers from 1 on. */
export const HEAP_ID = 0;

/** What peers are told of a buffer that this rank has registered, or has taken back. */
export type BufferMessage =
  | { readonly type: 'buffer'; readonly id: number; readonly buffer: SharedArrayBuffer }
  | { readonly type: 'forget'; readonly id: number };

/** The memory of this rank that its peers can read. */
export class OwnMemory {
  readonly heap: SharedHeap | undefined;
  readonly #tellPeers: (message: BufferMessage) => void;
  readonly #ids = new Map<ArrayBufferLike, number>();
  #next = 1;

  constructor(heap: SharedHeap | undefined, tellPeers: (message: BufferMessage) => void) {
    this.heap = heap;
    this.#tellPeers = tellPeers;
  }

  /** See Transport.allocate. */
  allocate(byteLength: number): Uint8Array {
    const bytes = this.heap?.allocate(byteLength);
    if (bytes !== undefined) {
      return bytes;
    }
    const buffer = new SharedArrayBuffer(byteLength);
    this.register(buffer);
    return new Uint8Array(buffer);
  }

  /** See Transport.register. */
  register(buffer: SharedArrayBuffer): void {
    if (!this.#ids.has(buffer)) {
      const id = this.#next++;
      this.#ids.set(buffer, id);
      this.#tellPeers({ type: 'buffer', id, buffer });
    }
  }

  /** See Transport.release. */
  release(memory: Uint8Array | ArrayBufferLike): void {
    const isView = ArrayBuffer.isView(memory);
    if (isView && this.heap?.release(memory)) {
      return;
    }
    const buffer = isView ? memory.buffer : memory;
    const id = this.#ids.get(buffer);
    if (id !== undefined) {
      this.#ids.delete(buffer);
      this.#tellPeers({ type: 'forget', id });
    }
  }

  /** The number by which peers know a buffer; undefined where they don't. */
  idOf(buffer: ArrayBufferLike): number | undefined {
    return this.heap?.holds(buffer) ? HEAP_ID : this.#ids.get(buffer);
  }

  clear(): void {
    this.#ids.clear();
  }
}

/** The buffers that one peer has registered. */
export class PeerBuffers {
  readonly #buffers = new Map<number, SharedArrayBuffer>();
  readonly #awaited = new Map<number, ((buffer: SharedArrayBuffer) => void)[]>();

  add(id: number, buffer: SharedArrayBuffer): void {
    this.#buffers.set(id, buffer);
    for (const resolve of this.#awaited.get(id) ?? []) {
      resolve(buffer);
    }
    this.#awaited.delete(id);
  }

  remove(id: number): void {
    this.#buffers.delete(id);
  }

  /**
   * The buffer of a number; a promise where it has not been announced yet. The promise stays
   * pending if the peer ends first.
   */
  get(id: number): SharedArrayBuffer | Promise<SharedArrayBuffer> {
    const known = this.#buffers.get(id);
    if (known !== undefined) {
      return known;
    }
    return new Promise((resolve) => {
      const list = this.#awaited.get(id) ?? [];
      this.#awaited.set(id, list);
      list.push(resolve);
    });
  }

  clear(): void {
    this.#buffers.clear();
    this.#awaited.clear();
  }
}
