// One rank's view of a backend: its memory pool and ledger, scopes, grad mode, random state and
// trace. All of it belongs to the Device and none to the module, so several ranks can share a
// process and a backend.

import { byteSize, type DType, isFloat } from '@shardweave/dtypes';
import type { BlockType } from '@shardweave/dtypes/blocks';
import { Autograd } from './autograd/autograd.js';
import type { GradientHook, NodeOptions } from './autograd/node.js';
import type { Backend } from './backend.js';
import { checkNames, checkOptions } from './check-options.js';
import { createDryBackend } from './dry-backend.js';
import { DTypeError, OptionError, ShapeError } from './errors.js';
import type { KernelCalls, KernelName } from './kernel-calls/kernel-calls.js';
import { DeviceMemory } from './memory/device-memory.js';
import { type Ledger, MEMORY_TAGS, type MemoryTag } from './memory/ledger.js';
import type { Pool } from './memory/pool.js';
import { ScopeStack, tensorsIn } from './memory/scope.js';
import { Storage } from './memory/storage.js';
import { numericClassOf } from './numeric-class.js';
import { tensorOfBlocks } from './ops/blocks.js';
import { commonDType } from './ops/checks.js';
import { checkShape, checkTarget, dtypeOf, type TensorData, toBytes } from './ops/tensor-data.js';
import { having, SEED, shown } from './options.js';
import { Random } from './random.js';
import { elementCountOf, type Shape, Tensor } from './tensor.js';
import type { Trace } from './trace.js';

/**
 * Options of `new Device(backend, options)`: the seed of its random state, and where its events go.
 */
export interface DeviceOptions {
  /** The seed of random ops, which must be equal on all ranks of a job. The default is 0. */
  readonly seed?: number;
  /** The trace that receives ranges and collectives. By default there is none. */
  readonly trace?: Trace | undefined;
}

/**
 * Options of what makes a tensor from nothing or from host data: its dtype, whether it is a leaf
 * that gets a gradient, and the memory tag under which its bytes are counted.
 */
export interface TensorOptions {
  /** The dtype. The default is f32, or that of the typed array given. */
  readonly dtype?: DType;
  readonly requiresGrad?: boolean;
  /** The memory tag. The default is 'activation'. */
  readonly tag?: MemoryTag;
}

const IS_BACKEND = having('a backend', 'alloc', 'free', 'write', 'read', 'copy', 'run', 'sync');
const DTYPES: readonly string[] = ['f32', 'f16', 'bf16', 'i32', 'u32'];
const TENSOR_OPTIONS = ['dtype', 'requiresGrad', 'tag'];

/**
 * Several devices may share a backend: each is one rank. Only one strand of asynchronous code at a
 * time may make tensors on a device, for its scopes nest in time; work in the background uses
 * storages, which need no scope.
 * @example
 * ```ts
 * import { Device, mul, sum } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const x = device.tensor([1, 2, 3], [3], { requiresGrad: true });
 * await device.scope(async () => {
 *   const loss = sum(mul(x, x));
 *   await loss.backward();
 *   console.log(await loss.item()); // logs 14
 * });
 * console.log(await x.grad?.toArray()); // logs Float32Array(3) [ 2, 4, 6 ]
 * device.dispose();
 * await backend.dispose();
 * ```
 */
export class Device {
  readonly random: Random;
  readonly trace: Trace | undefined;
  /** The graph and the backward passes of this device. */
  readonly autograd = new Autograd(this);
  /** @internal */
  readonly scopes = new ScopeStack();
  /** What dryRun replaces while it runs. */
  #memory: DeviceMemory;

  constructor(backend: Backend, options: DeviceOptions = {}) {
    if (!IS_BACKEND.holds(backend)) {
      const hint = backend instanceof Promise ? ' Await it first.' : '';
      throw new OptionError(
        `Device: expected a backend (of createCpuBackend or createWebGpuBackend), got ${shown(backend)}.${hint}`,
      );
    }
    checkOptions<DeviceOptions>('Device', options, {
      seed: SEED,
      trace: having('a Trace', 'add', 'range'),
    });
    this.#memory = new DeviceMemory(backend);
    this.random = new Random(options.seed ?? 0);
    this.trace = options.trace;
  }

  get backend(): Backend {
    return this.#memory.backend;
  }

  get pool(): Pool {
    return this.#memory.pool;
  }

  get ledger(): Ledger {
    return this.#memory.ledger;
  }

  /**
   * A text that is equal for devices which give equal bits for equal inputs: see docs/numerics.md.
   * The first call waits for the device.
   */
  numericClass(): Promise<string> {
    return numericClassOf(this.backend);
  }

  /**
   * Queues a kernel. Memory for its intermediate results comes from this device's pool, and the
   * ledger counts it.
   */
  run<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
    this.backend.run(kernel, call, this.#memory.scratch);
  }

  // ---- making tensors ------------------------------------------------------------------------

  /** Makes a storage without a buffer. The caller is its first holder. */
  storage(elementCount: number, dtype: DType, tag: MemoryTag): Storage {
    return new Storage(this, elementCount, dtype, tag);
  }

  /**
   * Makes a tensor of undefined contents. It belongs to the current scope, or to the caller where
   * none is open.
   */
  empty(shape: Shape, options: TensorOptions = {}): Tensor {
    checkShape('empty', shape);
    checkNames('empty', options, TENSOR_OPTIONS);
    const { dtype = 'f32', tag = 'activation' } = options;
    if (!DTYPES.includes(dtype)) {
      throw new OptionError(
        `empty: expected dtype among ${DTYPES.join(', ')}, got ${shown(dtype)}.`,
      );
    }
    if (!MEMORY_TAGS.includes(tag)) {
      throw new OptionError(
        `empty: expected tag among ${MEMORY_TAGS.join(', ')}, got ${shown(tag)}.`,
      );
    }
    if (options.requiresGrad === true && !isFloat(dtype)) {
      throw new DTypeError(`empty: expected a float dtype for requiresGrad, got ${dtype}.`);
    }
    const storage = this.storage(elementCountOf(shape), dtype, tag);
    storage.fill();
    const tensor = new Tensor(storage, shape, 0, options.requiresGrad ?? false);
    const scope = this.scopes.current;
    if (scope === undefined) {
      tensor.markKept();
    } else {
      scope.storages.add(storage);
    }
    return tensor;
  }

  /** Makes a tensor whose elements are all `value`. */
  full(shape: Shape, value: number, options: TensorOptions = {}): Tensor {
    const tensor = this.empty(shape, options);
    if (tensor.size > 0) {
      this.run('fill', { out: tensor.view(), value });
    }
    return tensor;
  }

  zeros(shape: Shape, options: TensorOptions = {}): Tensor {
    return this.full(shape, 0, options);
  }

  /**
   * Makes a tensor from host values in row-major order.
   * @param shape the shape, which by default is [data.length]
   * @param options.blocks the type of ggml's blocks that the bytes are, rows of whole blocks; ops
   * then decode them to `dtype`, a float. By default they are numbers.
   * @throws {ShapeError} when the number of values is not the shape's.
   */
  tensor(
    data: TensorData,
    shape?: Shape,
    options: TensorOptions & { readonly blocks?: BlockType } = {},
  ): Tensor {
    checkNames('tensor', options, [...TENSOR_OPTIONS, 'blocks']);
    if (options.blocks !== undefined) {
      return tensorOfBlocks(this, data, { ...options, shape, type: options.blocks });
    }
    const dtype = options.dtype ?? dtypeOf(data);
    const count = data instanceof Uint8Array ? data.byteLength / byteSize(dtype) : data.length;
    const resolved = shape ?? [count];
    if (elementCountOf(resolved) !== count) {
      throw new ShapeError(
        `tensor: expected ${elementCountOf(resolved)} values for shape [${resolved.join(', ')}], got ${count}.`,
      );
    }
    const tensor = this.empty(resolved, { ...options, dtype });
    if (count > 0) {
      tensor.storage.write(toBytes(data, dtype));
    }
    return tensor;
  }

  // ---- scopes and modes ----------------------------------------------------------------------

  /**
   * Runs `body`. At its end, all tensors that it made are freed, except those that it returned (in
   * any container) and those that the graph saved for backward. The outermost scope also frees the
   * graphs to which no returned tensor belongs.
   */
  scope<T>(body: () => T): T {
    const scope = this.scopes.enter();
    let result: T;
    try {
      result = body();
    } catch (error) {
      this.scopes.abandon(scope);
      throw error;
    }
    if (!(result instanceof Promise)) {
      this.scopes.exit(scope, result);
      return result;
    }
    return result.then(
      (value: unknown) => {
        this.scopes.exit(scope, value);
        return value;
      },
      (error: unknown) => {
        this.scopes.abandon(scope);
        throw error;
      },
    ) as T;
  }

  get isGradEnabled(): boolean {
    return this.autograd.isGradEnabled;
  }

  /** Runs `body` without recording a graph. */
  noGrad<T>(body: () => T): T {
    return this.autograd.noGrad(body);
  }

  // ---- autograd ------------------------------------------------------------------------------

  /**
   * Adds an op to the graph where grad mode is on and an input requires grad; for ops outside this
   * package (checkpointing, offload) as well as inside.
   */
  record(options: NodeOptions): void {
    this.autograd.record(options);
  }

  /**
   * Adds gradients to the leaves that `root` depends on, and frees its graph.
   * @param options.gradient of the root's shape; may be left out for a one-element root.
   * @param options.retainGraph keeps the graph for a further backward.
   * @throws {GraphError} when the graph was freed, or there is none.
   */
  backward(
    root: Tensor,
    options: { gradient?: Tensor; retainGraph?: boolean } = {},
  ): Promise<void> {
    checkNames('backward', options, ['gradient', 'retainGraph']);
    return this.autograd.backward(root, options);
  }

  get isInBackward(): boolean {
    return this.autograd.isInBackward;
  }

  /**
   * Awaits `hook` before the gradient of any of `outputs` is used, at every backward through them.
   * Outputs outside the graph are passed over; outputs of one node register once.
   * @returns how many nodes it was registered on.
   */
  beforeGradientOf(outputs: unknown, hook: GradientHook): number {
    const nodes = new Set(tensorsIn(outputs).flatMap((output) => output.origin?.node ?? []));
    for (const node of nodes) {
      node.hooks.push(hook);
    }
    return nodes.size;
  }

  // ---- in place, outside the graph -----------------------------------------------------------

  /**
   * Computes target += source, in target's dtype. Both are floats, or integers of one dtype.
   * @throws {ShapeError} for another shape, a source that shares a part of the target's elements,
   * or a 16-bit target that begins or ends inside a word
   * @throws {DTypeError} for other combinations of dtypes
   */
  addInPlace(target: Tensor, source: Tensor): void {
    checkTarget('addInPlace', target, source);
    commonDType('addInPlace', target, source);
    if (target.size === 0) {
      return;
    }
    target.storage.markWritten('addInPlace', [{ start: target.offset, length: target.size }]);
    const out = target.view();
    const shape = [target.size];
    this.run('binary', {
      kind: 'add',
      a: out,
      b: source.view(),
      out,
      shape,
      aStrides: [1],
      bStrides: [1],
    });
  }

  /**
   * Copies source to target, converted to target's dtype as cast does, for any pair of dtypes.
   * @throws {ShapeError} as addInPlace does
   */
  copyInto(target: Tensor, source: Tensor): void {
    checkTarget('copyInto', target, source);
    const isSame = target.storage === source.storage && target.offset === source.offset;
    if (target.size === 0 || isSame) {
      return;
    }
    target.storage.markWritten('copyInto', [{ start: target.offset, length: target.size }]);
    this.run('cast', { x: source.view(), out: target.view() });
  }

  // ---- housekeeping --------------------------------------------------------------------------

  /** Returns the live and the peak bytes by tag, and the bytes that the pool has taken. */
  memory() {
    return {
      live: this.ledger.live(),
      peak: this.ledger.peak(),
      reservedBytes: this.pool.reservedBytes,
      bufferCount: this.pool.bufferCount,
    };
  }

  /**
   * Runs `body` over a backend that computes nothing, with a pool of its own, to learn how much
   * memory it takes. Shapes, order and lifetimes are those of a real run; values are zeros. What
   * was on the device before stays untouched, and nothing that `body` makes outlives the call.
   */
  async dryRun(body: () => unknown): Promise<{ readonly peakInUseBytes: number }> {
    const [real, random] = [this.#memory, this.random.state()];
    const dry = new DeviceMemory(createDryBackend(real.backend));
    dry.isDisposed = real.isDisposed; // so that a device that is gone refuses body's tensors
    this.#memory = dry;
    const bringBack = this.scopes.setAside(); // the outermost scope is body's, so graphs end with it
    try {
      await this.scope(body);
      return { peakInUseBytes: dry.pool.peakInUseBytes };
    } finally {
      bringBack();
      this.random.restore(random);
      this.#memory = real;
      if (dry.isDisposed) {
        this.dispose();
      }
    }
  }

  /** Resolves when all queued work has run. */
  synchronize(): Promise<void> {
    return this.backend.sync();
  }

  get isDisposed(): boolean {
    return this.#memory.isDisposed;
  }

  /**
   * Gives all its buffers back, those of living tensors too; the backend stays open, for other
   * ranks may use it. Idempotent.
   */
  dispose(): void {
    this.#memory.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}
