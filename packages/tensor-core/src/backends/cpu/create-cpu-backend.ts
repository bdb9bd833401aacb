// Puts a CPU device together from its memory, its queue and the engine that runs the queue.

import type { Backend } from '../../backend.js';
import { checkOptions, checkValue } from '../../check-options.js';
import { LimitError, OptionError, OutOfMemoryError, StateError } from '../../errors.js';
import { FLAG, type OptionRule, oneOf, whole } from '../../options.js';
import { CommandQueue } from './command-queue.js';
import { CommandRing } from './command-ring.js';
import { CommandWriter } from './command-writer.js';
import { chooseKernels } from './compile-kernels.js';
import { CpuBackend } from './cpu-backend.js';
import { cpuLayout, MAX_MEMORY_BYTES, MAX_THREADS } from './cpu-limits.js';
import { LIBRARY_LEAST } from './encode-matmul.js';
import type { Engine, EngineEvents } from './engine.js';
import { Heap } from './heap.js';
import { startInline } from './inline-engine.js';
import type { NativeProducts } from './native/native-products.js';
import { Room } from './room.js';
import { Staging } from './staging.js';
import { startThreads } from './thread-engine.js';
import { WasmMemory } from './wasm-memory.js';

/** Options of the WebAssembly backend: its threads, its memory, and how exactly it rounds. */
export interface CpuBackendOptions {
  /**
   * The number of worker threads. With 0 kernels run on the host's thread, in slices. The default
   * is the machine's cores, at most 8, or 0 where there is no SharedArrayBuffer (a page that is not
   * cross-origin isolated).
   */
  readonly threads?: number;
  /**
   * The URL of `@shardweave/tensor-core/cpu-worker`, for pages that forbid workers of Blob URLs.
   */
  readonly workerUrl?: string | URL;
  /**
   * The bytes that the device's memory may grow to. The default is 4 GiB less a page, or less where
   * the engine cannot reserve that.
   */
  readonly memoryBytes?: number;
  /**
   * Whether matrix products may round each product and its sum at once, which is faster. The
   * default is true. Products are then fused where the host has relaxed SIMD and the processor
   * fuses, and the device's numeric class says so.
   */
  readonly fusedProducts?: boolean;
  /**
   * What computes matrix products of some size: `wasm`, the default, whose bits are the same on all
   * machines that fuse; `native`, a library of this machine in the device's own threads, some twice
   * as fast; `auto`, native where there is one. Small products stay in wasm. Node alone has
   * libraries, by the optional package koffi.
   */
  readonly products?: 'wasm' | 'native' | 'auto';
  /**
   * The path of that library or its name, such as `libmkl_rt.so.2`. By default OpenBLAS or
   * Accelerate is looked for, and for bf16 oneDNN where the processor has AMX.
   */
  readonly library?: string;
  /**
   * Whether each 32 numbers of a row are rounded to 8 bits, as llama.cpp does, where up to five
   * rows in f32 are multiplied with a matrix in blocks and no gradient is recorded. This takes half
   * of the time. The default is false: the bits of products with the decoded matrix.
   */
  readonly quantizeActivations?: boolean;
}

const NAME_OR_PATH: OptionRule = {
  expected: 'a name or path',
  holds: (value) => typeof value === 'string' && value !== '',
};

/**
 * The most threads by default. With more, memory bandwidth is the limit, and each takes scratch.
 */
const DEFAULT_MAX_THREADS = 8;

/**
 * Opens the CPU device. It rejects with LimitError for options out of range, with OutOfMemoryError
 * where the memory cannot be reserved, with DeviceLostError where a worker cannot start, and with
 * StateError where the kernels were built from other sources or native products can't be had.
 */
export async function createCpuBackend(options: CpuBackendOptions = {}): Promise<Backend> {
  return openCpuBackend(options, LIBRARY_LEAST);
}

/** Does so for tests that give a library products of other sizes, too. */
export async function openCpuBackend(
  options: CpuBackendOptions,
  libraryLeast: number,
): Promise<Backend> {
  checkOptions<CpuBackendOptions>('createCpuBackend', options, {
    threads: { expected: 'a number', holds: (value) => typeof value === 'number' },
    workerUrl: {
      expected: 'an address or a URL',
      holds: (value) => typeof value === 'string' || value instanceof URL,
    },
    memoryBytes: whole(1),
    fusedProducts: FLAG,
    products: oneOf('wasm', 'native', 'auto'),
    library: NAME_OR_PATH,
    quantizeActivations: FLAG,
  });
  if (options.library !== undefined && (options.products ?? 'wasm') === 'wasm') {
    throw new OptionError(
      `createCpuBackend: expected products: 'native' with a library, got '${options.products ?? 'wasm'}'.`,
    );
  }
  const threads = chooseThreads(options.threads);
  const isThreaded = threads > 0;
  const { heapBase, stagingBytes, memoryBytes: maxBytes } = cpuLayout({ ...options, threads });
  if (heapBase + stagingBytes > maxBytes) {
    const limit = heapBase + stagingBytes;
    throw new LimitError(`cpu: expected memoryBytes above ${limit}, got ${maxBytes}.`);
  }
  const fusedProducts = options.fusedProducts ?? true;
  const { module, isFused } = await chooseKernels({ isThreaded, fusedProducts });
  const native = await openProducts(options);
  const memory = openMemory(heapBase + stagingBytes, {
    asked: options.memoryBytes,
    isShared: isThreaded,
  });
  native?.useLargePages(memory.memory, memory.maxBytes);
  const heap = new Heap(memory, heapBase);
  const staging = new Staging(memory, heap.alloc(stagingBytes), stagingBytes);
  const ring = new CommandRing(memory, staging);
  const queue = new CommandQueue(memory, ring);
  const events: EngineEvents = {
    onFence: (id) => queue.onFence(id),
    onFailure: (error) => queue.fail(error),
  };
  const engine: Engine = isThreaded
    ? await startThreads(module, memory, events, {
        threads,
        workerUrl: options.workerUrl,
        native,
      })
    : startInline(module, memory, events, native);
  queue.start(engine);
  const room = new Room(heap, memory);
  const reserve = (byteLength: number) => room.reserve(byteLength, 'scratch');
  const library = native && { ...native, least: libraryLeast };
  const writer = new CommandWriter(queue, heap, threads, reserve, library);
  const products = native?.name;
  const quantizesRows = options.quantizeActivations ?? false;
  return new CpuBackend({
    memory,
    heap,
    room,
    staging,
    queue,
    ring,
    writer,
    engine,
    isFused,
    products,
    quantizesRows,
  });
}

/** Finds the library where one is asked for; undefined where products stay in wasm. */
async function openProducts({
  products = 'wasm',
  library,
}: CpuBackendOptions): Promise<NativeProducts | undefined> {
  if (products === 'wasm') {
    return undefined;
  }
  try {
    return await findLibrary(library);
  } catch (error) {
    if (products === 'auto' && library === undefined) {
      return undefined;
    }
    throw error;
  }
}

/**
 * Finds the library that `products: 'native'` takes, by its name or path or else one that is known.
 * Its name has version and core, such as `OpenBLAS 0.3.21 Haswell`.
 * @throws {StateError} where there is none, or it does not work
 */
export async function findNativeProducts(library?: string): Promise<{ readonly name: string }> {
  if (library !== undefined) {
    checkValue('findNativeProducts', 'library', library, NAME_OR_PATH);
  }
  return findLibrary(library);
}

async function findLibrary(name: string | undefined): Promise<NativeProducts> {
  if (globalThis.process?.getBuiltinModule === undefined) {
    throw new StateError(
      'cpu: native products: expected Node, got a page. Leave products in wasm.',
    );
  }
  const native = await import('./native/native-products.js');
  return native.findLibrary(name);
}

function chooseThreads(asked: number | undefined): number {
  if (asked !== undefined && !(Number.isInteger(asked) && asked >= 0 && asked <= MAX_THREADS)) {
    throw new LimitError(`cpu: expected 0 to ${MAX_THREADS} threads, got ${asked}.`);
  }
  // A page that is not cross-origin isolated has no SharedArrayBuffer, or may not post it.
  const canShare =
    typeof SharedArrayBuffer !== 'undefined' && globalThis.crossOriginIsolated !== false;
  if (!canShare) {
    return 0;
  }
  return asked ?? Math.max(1, Math.min(DEFAULT_MAX_THREADS, coreCount()));
}

function coreCount(): number {
  const os = globalThis.process?.getBuiltinModule?.('node:os');
  return os?.availableParallelism() ?? globalThis.navigator?.hardwareConcurrency ?? 1;
}

/**
 * Opens the device's memory. Where the engine cannot reserve it and the caller named no size, half
 * as much is tried, again and again.
 */
function openMemory(
  initialBytes: number,
  options: { readonly asked: number | undefined; readonly isShared: boolean },
): WasmMemory {
  const { asked, isShared } = options;
  for (let maxBytes = Math.min(asked ?? MAX_MEMORY_BYTES, MAX_MEMORY_BYTES); ; maxBytes /= 2) {
    try {
      return new WasmMemory({ initialBytes, maxBytes, isShared });
    } catch (cause) {
      if (asked === undefined && maxBytes / 2 > initialBytes) {
        continue;
      }
      throw new OutOfMemoryError(
        `cpu: could not reserve ${maxBytes} bytes of address space. Pass a smaller memoryBytes.`,
        { requestedBytes: maxBytes, cause },
      );
    }
  }
}
