// Keeps freed buffers of one device for reuse, by size class. A request gets the oldest free buffer
// of its class. So equal requests get the same buffers in every step, in whatever order these came
// back, and a step finds its cached bind groups again. A buffer is handed out whole. It may be
// handed out as soon as it is freed, for one queue runs all commands in order.

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import type { Backend } from '../backend.js';
import { LimitError, OutOfMemoryError, StateError } from '../errors.js';
import { PriorityQueue } from '../priority-queue.js';
import type { BackendBuffer } from '../view.js';
import type { HostBlocks } from './host-blocks.js';

const SMALL_STEP = 256; // the binding alignment; finer classes would save nothing
const SMALL_LIMIT = 16 * 1024;
const CLASSES_PER_OCTAVE = 8; // at most 12.5 % of a large buffer is unused

/** The bytes of the buffer that serves a request of `byteLength` bytes. */
export function sizeClass(byteLength: number): number {
  if (byteLength <= SMALL_LIMIT) {
    return Math.max(SMALL_STEP, Math.ceil(byteLength / SMALL_STEP) * SMALL_STEP);
  }
  const step = pow64(2, floorLog2(byteLength - 1)) / CLASSES_PER_OCTAVE;
  return Math.ceil(byteLength / step) * step;
}

/** The buffers that one device has from its backend. */
export class Pool {
  readonly #backend: Backend;
  /** The free buffers of each size class, the oldest first. */
  readonly #free = new Map<number, PriorityQueue<BackendBuffer>>();
  /** The size class of every buffer, in use and free. */
  readonly #classes = new Map<BackendBuffer, number>();
  /** The limit that was set as `limitBytes`. */
  #limitBytes = Number.POSITIVE_INFINITY;
  /** The limits that `limit` has put up and that have not ended. */
  readonly #limits = new Set<{ readonly bytes: number }>();
  #reservedBytes = 0;
  #inUseBytes = 0;
  #peakInUseBytes = 0;

  /** The blocks of the pool's device. DeviceMemory sets them. */
  blocks!: HostBlocks;
  /** The buffers that something outside reads or writes, and how many do. */
  readonly #lent = new Map<BackendBuffer, number>();
  #isDisposed = false;
  readonly #unsubscribe: (() => void) | undefined;

  constructor(backend: Backend) {
    this.#backend = backend;
    this.#unsubscribe = backend.onMemoryPressure?.(() => this.trim());
  }

  /**
   * The most bytes to take from the backend, in use and free. The default is Infinity. Where a
   * request would exceed it, free buffers are given back first, the largest of them first. Reading
   * it gives the smallest of what was set and of the limits that `limit` has put up.
   */
  get limitBytes(): number {
    return [...this.#limits].reduce((least, { bytes }) => Math.min(least, bytes), this.#limitBytes);
  }

  set limitBytes(bytes: number) {
    this.#limitBytes = bytes;
  }

  /** Gives back what is free and holds at most `bytes` until the returned function is called. */
  limit(bytes: number): () => void {
    const limit = { bytes }; // an object, so that two limits of equal bytes are two members
    this.#limits.add(limit);
    this.trim();
    return () => void this.#limits.delete(limit);
  }

  /** The bytes of all buffers, in use and free. */
  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  /** The bytes of the buffers in use. */
  get inUseBytes(): number {
    return this.#inUseBytes;
  }

  /**
   * The most bytes in use at once since creation or the last resetPeak: the lowest limit that
   * works.
   */
  get peakInUseBytes(): number {
    return this.#peakInUseBytes;
  }

  resetPeak(): void {
    this.#peakInUseBytes = this.#inUseBytes;
  }

  /** The number of buffers, in use and free. */
  get bufferCount(): number {
    return this.#classes.size;
  }

  /**
   * @throws {LimitError} where the buffers in use leave no room under limitBytes
   * @throws {OutOfMemoryError} where the device has no room, though all free buffers were given
   * back
   */
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
    if (this.#reservedBytes + bytes > this.limitBytes) {
      this.#makeRoom(bytes, label);
    }
    const buffer = this.#allocOrTrim(bytes, label);
    this.#classes.set(buffer, bytes);
    this.#reservedBytes += bytes;
    return buffer;
  }

  #allocOrTrim(bytes: number, label: string): BackendBuffer {
    try {
      return this.#backend.alloc(bytes, label);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) {
        throw error;
      }
    }
    this.trim();
    try {
      return this.#backend.alloc(bytes, label);
    } catch (cause) {
      if (!(cause instanceof OutOfMemoryError)) {
        throw cause;
      }
      const least = Math.min(this.limitBytes, cause.limitBytes ?? Number.POSITIVE_INFINITY);
      const limitBytes = Number.isFinite(least) ? least : undefined;
      const limit = limitBytes === undefined ? '' : `, limit ${limitBytes}`;
      throw new OutOfMemoryError(
        `pool: expected room for ${bytes} ${label} bytes, got none (${this.#inUseBytes} in use here, ${cause.reservedBytes ?? this.#reservedBytes} held in all${limit}). Hold less at once, by smaller batches or checkpointing; the device goes on.`,
        {
          cause,
          requestedBytes: bytes,
          liveBytes: this.#inUseBytes,
          reservedBytes: this.#reservedBytes,
          limitBytes,
        },
      );
    }
  }

  #makeRoom(bytes: number, label: string): void {
    if (this.#inUseBytes + bytes > this.limitBytes) {
      throw new LimitError(
        `pool: expected room for ${bytes} ${label} bytes under the limit of ${this.limitBytes}, got ${this.#inUseBytes} in use. Raise the limit, or hold less at once.`,
        { requestedBytes: bytes, limitBytes: this.limitBytes },
      );
    }
    const isShort = () => this.#reservedBytes + bytes > this.limitBytes;
    const sizes = [...this.#free.keys()].sort((a, b) => b - a);
    for (const size of sizes) {
      if (!isShort()) {
        return;
      }
      const free = [...this.#free.get(size)!.items].sort((a, b) => a.id - b.id);
      while (free.length > 0 && isShort()) {
        this.#drop(free.pop()!);
      }
      this.#free.delete(size);
      free.map((buffer) => this.#keep(buffer, size));
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
    if (buffer.isLost === true) {
      this.#drop(buffer);
      return;
    }
    this.#keep(buffer, bytes);
  }

  #keep(buffer: BackendBuffer, bytes: number): void {
    const queue = this.#free.get(bytes) ?? new PriorityQueue<BackendBuffer>(({ id }) => -id);
    this.#free.set(bytes, queue);
    queue.push(buffer);
  }

  /** Gives free buffers back to the backend. */
  trim(): void {
    for (const { items } of this.#free.values()) {
      for (const buffer of items) {
        this.#drop(buffer);
      }
    }
    this.#free.clear();
  }

  get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /**
   * Notes that something outside reads or writes a buffer in use, until the returned function is
   * called: the backend doesn't get it back before, even if the pool is disposed.
   */
  lend(buffer: BackendBuffer): () => void {
    this.#lent.set(buffer, (this.#lent.get(buffer) ?? 0) + 1);
    return () => {
      const left = this.#lent.get(buffer)! - 1;
      if (left > 0) {
        this.#lent.set(buffer, left);
        return;
      }
      this.#lent.delete(buffer);
      if (this.#isDisposed) {
        this.#drop(buffer);
      }
    };
  }

  /** Gives all buffers back, even those in use; those that are lent follow later. */
  dispose(): void {
    this.#isDisposed = true;
    this.#unsubscribe?.();
    this.#free.clear();
    for (const buffer of [...this.#classes.keys()]) {
      if (!this.#lent.has(buffer)) {
        this.#drop(buffer);
      }
    }
    this.#inUseBytes = 0;
  }

  #drop(buffer: BackendBuffer): void {
    this.#reservedBytes -= this.#classes.get(buffer)!;
    this.#classes.delete(buffer);
    this.#backend.free(buffer);
  }
}
