// The seam between tensors and devices: everything that a device must be able to do. A backend is a
// queue over byte buffers. It knows nothing of autograd, ownership, pools or tags, which lie above
// it and are the same for every device. There are three implementations: webgpu, cpu (WebAssembly)
// and reference (plain float64 loops that specify every kernel).
//
// Ordering   alloc, write, copy, run and read take effect in call order, as on one queue. All
//            but read and sync return at once, having at most encoded the work.
// Ownership  a BackendBuffer belongs to whoever allocated it and is freed once. It may be freed
//            while queued work uses it; its bytes may be handed out again to later commands.
// Failure    run never throws for the device's state. A lost device or a shader error rejects the
//            next read or sync, and every later one, with a typed error.
// Memory     a failed allocation does not end the device. Whoever keeps memory for reuse gives it
//            back (see onMemoryPressure), and the allocation is tried again. If that fails too, the
//            alloc, write, run or read that needed it fails alone, with OutOfMemoryError. A device
//            that learns of the failure late (webgpu) fails the next read or sync in its place:
//            what was queued since the allocation may not have run. The buffer is then lost:
//            commands that name it throw OutOfMemoryError, and those without it run as ever.
// Aliasing   an output overlaps no input, except exactly (same buffer, offset, dtype, size)
//            where a kernel's comment says "in place". Callers check; backends may rely on it.
// Alignment  byteOffset is a multiple of the dtype's size, for outputs also of 4. 16-bit outputs
//            are written as whole 32-bit words, so the last word's other half may be clobbered:
//            buffers are padded to 4 bytes. Kernels with output strides say what they need.
// Numbers    every kernel computes in f32 (cpu and webgpu) whatever the storage, and rounds to
//            nearest even once, at the store. Sums have a fixed order, independent of threads.

import type { KernelCalls, KernelName } from './kernel-calls/kernel-calls.js';
import type { BackendBuffer } from './view.js';

/** The sizes that a device can handle, in bytes. */
export interface BackendLimits {
  /** The largest buffer that alloc can make. */
  readonly maxBufferBytes: number;
  /**
   * The largest view of one operand that the device binds at once. Kernels split larger operands by
   * elements, rows or batches. A kernel whose comment says that a row or a batch must bind throws
   * LimitError where that is larger. The kernel of a custom op needs all operands whole.
   */
  readonly maxViewBytes: number;
}

/** What a device is: its kind, its name for people, and what results and limits depend on. */
export interface BackendInfo {
  readonly kind: 'webgpu' | 'cpu' | 'reference';
  /** A text for people: the adapter's name and driver, or 'wasm relaxed simd, 2 threads'. */
  readonly description: string;
  readonly isSoftware: boolean;
  /**
   * What its kernels are compiled for, because the bits of results depend on it: an adapter and
   * its driver, or whether products are fused; '' where there is one kind.
   */
  readonly compiledFor: string;
  /** Whether the device computes on the host's own memory (reads and writes are memcpy). */
  readonly isHostMemory: boolean;
  readonly limits: BackendLimits;
}

/** A function that receives what a profiler shows. Times are in ms of performance.now(). */
export type BackendTraceSink = (event: {
  readonly name: string;
  readonly track: 'device' | 'staging';
  readonly startMs: number;
  readonly endMs: number;
  readonly bytes?: number;
}) => void;

/**
 * Where a kernel's intermediate results lie while it runs. The device that queued the kernel counts
 * them and holds them under its limit; take throws LimitError and OutOfMemoryError as it does for
 * tensors.
 */
export interface Scratch {
  /** `byteLength` is a multiple of 4. */
  take(byteLength: number): BackendBuffer;
  give(buffer: BackendBuffer): void;
}

/**
 * A device as everything above it sees it: a queue of commands over byte buffers. The head of this
 * file states ordering, ownership, failure and the rules of kernels, which all implementations
 * keep.
 */
export interface Backend {
  readonly info: BackendInfo;
  /** Whether it holds no bytes and computes nothing, so that nobody need make values for it. */
  readonly isDry?: boolean;
  /** Whether it takes blockDots that may round rows to 8 bits. */
  readonly quantizesRows?: boolean;

  /**
   * Allocates a buffer. `byteLength` is a multiple of 4.
   * @throws {LimitError} above maxBufferBytes
   * @throws {OutOfMemoryError} where the device knows at once that there is no room
   */
  alloc(byteLength: number, label: string): BackendBuffer;
  free(buffer: BackendBuffer): void;

  /**
   * Uploads `bytes`, which are copied before this returns. Offset and length are multiples of 4.
   */
  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void;
  /**
   * Resolves when few written bytes wait in host memory for the device. A host that awaits it
   * before each large write so holds few of them, however far it runs ahead of the device. It waits
   * only for work that is queued, never for what the host has yet to do. Rejects where the device
   * has failed. A backend without it can always be written to.
   */
  whenWritable?(): Promise<void>;
  /**
   * Reads bytes back once everything queued before has run. It fills and returns `into`, whose
   * length is byteLength, or a new array. Offset and length are multiples of 4.
   */
  read(
    buffer: BackendBuffer,
    byteOffset: number,
    byteLength: number,
    into?: Uint8Array,
  ): Promise<Uint8Array>;
  /**
   * Fills `into` at once, without waiting for work that is queued or running, which must not write
   * these bytes. Offset and length are multiples of 4. It throws where the device has failed, and
   * is absent where the device's memory is not the host's.
   */
  readNow?(buffer: BackendBuffer, byteOffset: number, into: Uint8Array): void;
  /**
   * The bytes of a buffer, for the host to read and write those that no queued command uses: see
   * settle. They stay there until it is freed. Absent where the device's memory is not the
   * host's, or may move.
   */
  readonly hostBytes?: (buffer: BackendBuffer) => Uint8Array;
  /**
   * Resolves when everything that was queued before and uses the buffer, or used its memory before
   * it was allocated, has run; undefined where all of that has. A backend with hostBytes has it.
   */
  settle?(buffer: BackendBuffer): Promise<void> | undefined;
  /** Copies bytes between different buffers. Offsets and length are multiples of 4. */
  copy(
    from: BackendBuffer,
    fromOffset: number,
    to: BackendBuffer,
    toOffset: number,
    byteLength: number,
  ): void;
  /**
   * Queues one kernel. Memory for its intermediate results comes from `scratch`, or, without one,
   * from the backend itself.
   */
  run<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch?: Scratch): void;
  /**
   * Takes from `scratch` what `run` would take, gives it back, and queues nothing. A backend
   * without it needs no scratch.
   */
  planScratch?<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch: Scratch): void;

  /**
   * Compiles the kernels that planScratch has met, so that no step waits for them. Rejects with a
   * ShaderError that names the kernel where one does not compile; the device stays usable. A
   * backend without it compiles nothing.
   */
  preparePlanned?(): Promise<void>;

  /**
   * Calls `relieve` whenever an allocation fails, for it to give back what it keeps for reuse.
   * Several ranks that share the backend relieve each other. Returns its removal. A device that
   * computes nothing may lack it.
   */
  onMemoryPressure?(relieve: () => void): () => void;

  /** Hands everything encoded so far to the device, without waiting for it. */
  flush(): void;
  /** Resolves when everything queued so far has run. */
  sync(): Promise<void>;
  /** Returns the bytes of buffers that were allocated and not freed, and their number. */
  usage(): { readonly bytes: number; readonly buffers: number };
  /** The kernels queued since creation, for tests that count dispatches. */
  readonly dispatches: number;
  /** Starts to report times of kernels and staging, or stops if `sink` is undefined. */
  trace(sink: BackendTraceSink | undefined): void;
  /** Frees everything and stops the threads. Pending reads reject. Later calls do nothing. */
  dispose(): Promise<void>;
}
