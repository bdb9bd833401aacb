// Builds one command at a time: encoders push arguments in the order that the kernel's header in
// assembly/ lists, then commit.

import type { DType } from '@shardweave/dtypes';
import {
  BF16,
  COLUMN_BLOCK,
  F16,
  F32,
  I32,
  SLOT_ARGS,
  SLOT_WORDS,
  U32,
} from '../../../assembly/layout.js';
import { DisposedError, LimitError, StateError } from '../../errors.js';
import type { BackendBuffer, View } from '../../view.js';
import type { CommandQueue, HostCommand } from './command-queue.js';
import { CpuBuffer, type QueuedCall } from './cpu-buffer.js';
import type { Heap } from './heap.js';

const NO_ARGS: readonly number[] = [];
const MAX_ARGS = SLOT_WORDS - SLOT_ARGS;
/** The least work of a chunk in ns, several times what waking a thread takes. */
const CHUNK_NS = 20_000;

export const DTYPE_CODES: Readonly<Record<DType, number>> = {
  f32: F32,
  f16: F16,
  bf16: BF16,
  i32: I32,
  u32: U32,
};

export interface ProductLibrary {
  /**
   * Loads it, once. To be called before a command that needs it is queued.
   * @param isBf16 whether the one for bf16 is meant
   */
  load(isBf16: boolean): void;
  /** The least multiply-adds of a product that it gets, at least 1. */
  readonly least: number;
  /** Whether whole tiles of rows have the same bits alone as beside others. */
  readonly keepsRows: boolean;
  /** Whether there is one that multiplies bf16 as it is. */
  readonly takesBf16: boolean;
}

export class CommandWriter {
  /** The number of threads that share the chunks, at least 1. */
  readonly threads: number;
  /** What computes large matrix products, where that is a library of the host. */
  readonly library: ProductLibrary | undefined;
  readonly #queue: CommandQueue;
  readonly #reserve: (byteLength: number) => number;
  readonly #heap: Heap;
  readonly #words = new Int32Array(MAX_ARGS);
  readonly #floats = new Float32Array(this.#words.buffer);
  #count = 0;
  #op = 0;
  #name: string | undefined;
  #payload: Uint8Array | undefined;
  #payloadArgs: readonly number[] = [];
  #temps: number[] = [];
  #call: QueuedCall = { end: Number.POSITIVE_INFINITY };

  constructor(
    queue: CommandQueue,
    heap: Heap,
    threads: number,
    /** Takes room in the heap. @throws {OutOfMemoryError} where there is none */
    reserve: (byteLength: number) => number,
    library?: ProductLibrary,
  ) {
    this.#queue = queue;
    this.#heap = heap;
    this.threads = Math.max(1, threads);
    this.#reserve = reserve;
    this.library = library;
  }

  /** Runs `encode`, which queues commands, and notes them as the last use of its buffers. */
  call(encode: () => void): void {
    const call = { end: Number.POSITIVE_INFINITY };
    this.#call = call;
    try {
      encode();
    } finally {
      call.end = this.#queue.numCommitted;
    }
  }

  /** The address of a buffer of this device, which the present call uses. */
  addressOf(buffer: BackendBuffer): number {
    const address = addressOf(buffer);
    (buffer as CpuBuffer).lastCall = this.#call;
    return address;
  }

  /** Begins a command; `name` is what a trace calls it. */
  start(op: number, name: string | undefined): this {
    this.#op = op;
    this.#name = name;
    this.#count = 0;
    this.#payload = undefined;
    this.#payloadArgs = NO_ARGS;
    return this;
  }

  int(...values: readonly number[]): this {
    for (const value of values) {
      this.#words[this.#next()] = value;
    }
    return this;
  }

  float(value: number): this {
    this.#floats[this.#next()] = value;
    return this;
  }

  /** Pushes the address of a view's first element, 0 where there is no view. */
  address(view: View | undefined): this {
    return this.int(view === undefined ? 0 : this.addressOf(view.buffer) + view.byteOffset);
  }

  /** Pushes the address and dtype of a view. */
  view(view: View | undefined): this {
    this.address(view);
    return this.int(view === undefined ? 0 : DTYPE_CODES[view.dtype]);
  }

  /** Sends bytes with the command, and pushes the address of each of `offsets` in them. */
  payload(bytes: Uint8Array, offsets: readonly number[]): this {
    this.#payload = bytes;
    this.#payloadArgs = offsets.map((_, i) => this.#count + i);
    this.int(...offsets);
    return this;
  }

  /**
   * Takes scratch, which lives until `release`, and returns its address.
   * @throws {OutOfMemoryError} where there is no room; what was taken before is given back.
   */
  temp(byteLength: number): number {
    try {
      const address = this.#reserve(byteLength);
      this.#temps.push(address);
      return address;
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** Gives scratch back: later commands may use it, what is queued still does. */
  release(): void {
    for (const address of this.#temps) {
      this.#heap.free(address);
    }
    this.#temps = [];
  }

  /** The number of chunks for work that one thread would do in `ns`, in `units` at most. */
  chunksFor(ns: number, units = Infinity): number {
    const most = this.threads === 1 ? 1 : this.threads * 4;
    return Math.max(1, Math.min(most, units, Math.floor(ns / CHUNK_NS)));
  }

  /** Queues work of the host's own. */
  host(command: HostCommand): void {
    this.#queue.commitHost(command);
  }

  commit(chunks: number): void {
    this.#queue.commit({
      op: this.#op,
      chunks,
      args: this.#words,
      argCount: this.#count,
      payload: this.#payload,
      payloadArgs: this.#payloadArgs,
      name: this.#name,
    });
  }

  #next(): number {
    if (this.#count >= MAX_ARGS) {
      throw new LimitError(`cpu: expected at most ${MAX_ARGS} words of arguments.`);
    }
    return this.#count++;
  }
}

/** The address of a buffer of this device. */
export function addressOf(buffer: BackendBuffer): number {
  if (!(buffer instanceof CpuBuffer)) {
    throw new StateError(`cpu: buffer ${buffer.id} belongs to another device.`);
  }
  if (buffer.isFreed) {
    throw new DisposedError(`cpu: buffer ${buffer.id} (${buffer.label}) was freed.`);
  }
  return buffer.address;
}

/**
 * Returns the units of work of a kernel over [outer, dim, inner]: rows where inner is 1, or else
 * blocks of columns of one outer index.
 */
export function columnUnits(outer: number, inner: number): number {
  return inner === 1 ? outer : outer * Math.ceil(inner / COLUMN_BLOCK);
}
