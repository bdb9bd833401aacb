// The parameters of a module as one: what rests between uses, and the copy that computation reads. Knows
// no schedule and no ranks: sharding and offload extend it by theirs.
//
// Note [flat parameter]
//   leaves  the module's parameter tensors; once their values are taken over they point into `full`
//   flat    the values in the leaves' own dtype, or one device's shard of them, with their gradient: what
//           the optimizer steps
//   full    all values in the dtype of computation; filled and freed under one identity, so what autograd
//           saved in forward is valid again in backward. Where it would be the same bytes (one device has
//           all, computes in their dtype, and they rest there) it is the flat's storage itself
//   home    where values, gradient and state rest, if not on the device: `flat` is empty but for a step

import {
  byteSize,
  type Device,
  type DType,
  StateError,
  type Storage,
  Tensor,
} from '@shardweave/tensor-core';
import { dropRecipe, recipeOf } from '../deferred-parameter.js';
import { setFlatHome } from '../residence/flat-home.js';
import type { HostBuffers } from '../residence/host-buffers.js';
import { StoredFlat, type StoredFlatOptions } from '../residence/stored-flat.js';
import { type FlatLayout, type FlatPlace, pieceIn } from './flat-layout.js';
import { readLeaves } from './leaf-values.js';

/** One parameter of a module. */
export interface FlatLeaf {
  /** Its path below the wrapped module. */
  readonly path: string;
  readonly tensor: Tensor;
}

export interface FlatParameterOptions {
  /** For errors and traces. */
  readonly name: string;
  readonly device: Device;
  /** All of one dtype. */
  readonly parameters: readonly FlatLeaf[];
  /** The leaves' places in the whole, which ends in padding so that shards are equal. */
  readonly layout: FlatLayout;
  /** Which of how many equal parts this device has. Default: all. */
  readonly shard?: { readonly index: number; readonly count: number };
  /** Default: the leaves'. */
  readonly computeDType?: DType;
  /** The ledger's name for `full`. */
  readonly fullTag?: 'gathered' | 'parameter';
  /** What to do where a leaf is read while it is not there. */
  readonly absentHint?: string;
  /** A store off the device. */
  readonly rest?: Omit<StoredFlatOptions, 'flat' | 'hostBuffers'> | undefined;
  /** For bytes on their way to the device. */
  hostBuffers?(): HostBuffers;
}

/** A load that has begun. */
export interface FlatLoad {
  /** The whole in the dtype of computation, a host buffer; undefined: the device has it. */
  readonly bytes: Promise<Uint8Array> | undefined;
  /** The flat's version that it brings. */
  readonly version: number;
}

/** Bytes of values that are on the host at once while a flat is filled. Not measured. */
const PART_BYTES = 4 * 2 ** 20;

export class FlatParameter {
  readonly name: string;
  readonly parameters: readonly FlatLeaf[];
  /** One-dimensional; its storage is empty until values are taken over, and while they rest elsewhere. */
  readonly flat: Tensor;
  readonly full: Storage;
  /** Undefined where everything rests on the device. */
  readonly home: StoredFlat | undefined;
  readonly #layout: FlatLayout;
  /** Its elements of the whole. */
  readonly #own: FlatPlace;
  readonly #hostBuffers: () => HostBuffers;
  /** Loads that were begun. Whoever takes one out of it, finished or abandoned, gives its buffer back. */
  readonly #loads = new Set<FlatLoad>();
  #hasValues = false;
  /** The versions of the flat that `full` has the values of, and of `full` when it had got them. */
  #loadedVersion = -1;
  #fullVersion = -1;

  /** Lays the parameters out and tells optimizers where their pieces are; values stay until takeOver. */
  constructor(options: FlatParameterOptions) {
    const { name, device, parameters, layout, rest } = options;
    const { shard = { index: 0, count: 1 } } = options;
    this.name = name;
    this.parameters = parameters;
    this.#layout = layout;
    const hostBuffers = () => options.hostBuffers!();
    this.#hostBuffers = hostBuffers;
    const dtype = parameters[0]?.tensor.dtype ?? 'f32';
    const { computeDType = dtype, fullTag = 'parameter' } = options;
    const length = layout.elementCount / shard.count;
    this.#own = { start: shard.index * length, length };
    const storage = device.storage(length, dtype, 'parameter');
    this.flat = new Tensor(storage, [length], 0, true);
    this.flat.name = name;
    this.home = rest && new StoredFlat({ ...rest, flat: this.flat, hostBuffers });
    if (this.home !== undefined) {
      setFlatHome(this.flat, this.home);
    }
    const isWhole = shard.count === 1 && computeDType === dtype && this.#valueHome === undefined;
    this.full = isWhole ? storage : device.storage(layout.elementCount, computeDType, fullTag);
    this.full.absentHint = options.absentHint;
    parameters.forEach(({ tensor }, index) => {
      const piece = pieceIn(layout, index, this.#own);
      tensor.piece = { flat: this.flat, ...piece, numShards: shard.count };
    });
  }

  get device(): Device {
    return this.flat.device;
  }

  /** Where the values rest; undefined on the device. */
  get #valueHome(): StoredFlat | undefined {
    return this.home?.holdsState ? this.home : undefined;
  }

  /** Elements of the whole, padding included. */
  get fullElements(): number {
    return this.#layout.elementCount;
  }

  /** Bytes of the whole in the dtype of computation, padding included. */
  get fullBytes(): number {
    return this.fullElements * byteSize(this.full.dtype);
  }

  /** Bytes of `flat`. */
  get byteLength(): number {
    return this.flat.size * byteSize(this.flat.dtype);
  }

  get isAllFrozen(): boolean {
    return this.parameters.every(({ tensor }) => !tensor.requiresGrad);
  }

  get hasFrozen(): boolean {
    return this.parameters.some(({ tensor }) => !tensor.requiresGrad);
  }

  // ---- values ----------------------------------------------------------------------------------

  /** Whether it has the leaves' values; before, they have them themselves. */
  get hasValues(): boolean {
    return this.#hasValues;
  }

  /**
   * Takes the leaves' values over and frees their own memory; once. Where it rejects they have them as
   * before. A store that has values of an earlier process keeps them.
   * @param fill writes all of it; default: from the leaves here
   */
  async takeOver(fill?: () => Promise<void>): Promise<void> {
    if (this.#hasValues) {
      return;
    }
    const home = this.#valueHome;
    if (home === undefined) {
      this.flat.storage.fill();
    }
    if (home?.isResuming !== true) {
      home?.beginFilling();
      if (fill !== undefined) {
        await fill();
      } else if (home !== undefined || this.#hasDeferred) {
        await this.#fillFromHost();
      } else {
        this.#copyLeaves();
      }
      await home?.endFilling();
    }
    this.#pointLeaves();
  }

  /** As takeOver, at once, for values that are on the device and stay there. */
  takeOverHere(): void {
    this.flat.storage.fill();
    this.#copyLeaves();
    this.#pointLeaves();
  }

  #pointLeaves(): void {
    this.#hasValues = true;
    this.parameters.forEach(({ tensor }, index) => {
      const own = tensor.storage;
      dropRecipe(tensor);
      tensor.rebind(this.full, this.#layout.offsets[index]!);
      own.release();
    });
  }

  get #hasDeferred(): boolean {
    return this.parameters.some(({ tensor }) => recipeOf(tensor) !== undefined);
  }

  async #fillFromHost(): Promise<void> {
    const elementBytes = byteSize(this.flat.dtype);
    for (const { start, length } of this.parts()) {
      const bytes = await this.readLeaves({ start: this.#own.start + start, length });
      await this.write(bytes, start * elementBytes);
    }
  }

  #copyLeaves(): void {
    const { backend } = this.device;
    if (this.flat.size > 0) {
      backend.run('fill', { out: this.flat.view(), value: 0 });
    }
    for (const { tensor } of this.parameters) {
      const { start, length, first } = tensor.piece!;
      if (length > 0) {
        const x = tensor.storage.view(tensor.offset + first!, length);
        backend.run('cast', { x, out: this.flat.storage.view(start, length) });
      }
    }
  }

  /** The flat, cut so that the host has little of it at once. */
  *parts(): Generator<FlatPlace> {
    const { size, dtype } = this.flat;
    const most = PART_BYTES / byteSize(dtype);
    for (let start = 0; start < size; start += most) {
      yield { start, length: Math.min(most, size - start) };
    }
  }

  /** Host bytes of a run of the whole before takeOver, in the leaves' dtype. */
  readLeaves(run: FlatPlace): Promise<Uint8Array> {
    const leaves = this.parameters.map(({ tensor }) => tensor);
    return readLeaves(leaves, this.#layout, run);
  }

  /** Bytes of `flat`, from where it rests. */
  async read(byteOffset = 0, byteLength = this.byteLength): Promise<Uint8Array> {
    const source = this.#valueHome;
    return source === undefined
      ? this.flat.storage.read(byteOffset, byteLength)
      : source.readParameter(byteOffset, byteLength);
  }

  /** Writes bytes of `flat`, whole words; what was loaded from it is stale. */
  async write(bytes: Uint8Array, byteOffset = 0): Promise<void> {
    const home = this.#valueHome;
    if (home === undefined) {
      return this.flat.storage.write(bytes, byteOffset);
    }
    this.flat.storage.markWritten();
    await home.writeParameter(bytes, byteOffset);
  }

  /** A leaf's bytes at rest, where one device has all of it. */
  readLeaf(leaf: Tensor): Promise<Uint8Array> {
    const elementBytes = byteSize(this.flat.dtype);
    return this.read(leaf.piece!.start * elementBytes, leaf.size * elementBytes);
  }

  /** Replaces them. */
  writeLeaf(leaf: Tensor, bytes: Uint8Array): Promise<void> {
    return this.write(bytes, leaf.piece!.start * byteSize(this.flat.dtype));
  }

  // ---- presence --------------------------------------------------------------------------------

  /** Whether `full` is there and current: read from the storage and its version, never from a flag. */
  get isPresent(): boolean {
    if (this.full === this.flat.storage) {
      return true;
    }
    return this.full.isFilled && this.#loadedVersion === this.flat.storage.version;
  }

  /** Begins to bring the values to where they are computed with; never waits. */
  startLoad(): FlatLoad {
    const { version } = this.flat.storage;
    const bytes = this.joined(this.#valueHome?.readForLoad(this.full.dtype));
    bytes?.catch(() => undefined); // seen by finishLoad
    const load = { bytes, version };
    this.#loads.add(load);
    return load;
  }

  /**
   * The whole as a host buffer in the dtype of computation, of which `stored` is this device's part, read
   * from its home; undefined: the device has the whole.
   */
  protected joined(stored: Promise<Uint8Array> | undefined): Promise<Uint8Array> | undefined {
    return stored;
  }

  /**
   * Waits for a load and makes the values present.
   * @throws {StateError} where it was abandoned meanwhile
   */
  async finishLoad(load: FlatLoad): Promise<void> {
    const bytes = await load.bytes;
    if (!this.#loads.delete(load)) {
      throw new StateError(
        `flat parameter '${this.name}': expected the model to stay as it was while this was loaded, but it was disposed or failed meanwhile. Await every call before the next one.`,
      );
    }
    try {
      this.full.fill();
      if (bytes === undefined) {
        this.device.backend.run('cast', { x: this.flat.view(), out: this.full.view() });
      } else {
        this.full.write(bytes);
      }
    } finally {
      this.#give(bytes);
    }
    this.#noteLoaded(load.version);
  }

  /** Memory for values without any, for a dry run. */
  fillDry(): void {
    this.full.fill();
    this.#noteLoaded(this.flat.storage.version);
  }

  #noteLoaded(version: number): void {
    this.#loadedVersion = version;
    this.#fullVersion = this.full.version;
  }

  /** Nobody will finish the loads that were begun. */
  abandonLoads(): void {
    for (const { bytes } of this.#loads) {
      bytes?.then(
        (loaded) => this.#give(loaded),
        () => undefined,
      );
    }
    this.#loads.clear();
  }

  #give(bytes: Uint8Array | undefined): void {
    if (bytes !== undefined) {
      this.#hostBuffers().give(bytes);
    }
  }

  /**
   * Takes what the program has written into `full` over into the flat, and frees `full`. Nothing where
   * nobody has written.
   * @throws {StateError} where the flat cannot take it over; it is lost then, and `full` freed
   */
  keepWrites(): void {
    const { full, flat } = this;
    if (full === flat.storage || !full.isFilled || full.version === this.#fullVersion) {
      return;
    }
    const isCurrent = this.#loadedVersion === flat.storage.version;
    if (isCurrent && full.dtype === flat.dtype && this.#valueHome === undefined) {
      const own = full.view(this.#own.start, this.#own.length);
      this.device.backend.run('cast', { x: own, out: flat.view() });
      flat.storage.markWritten();
      full.free();
      return;
    }
    full.free();
    const rests = this.#valueHome === undefined ? '' : ' in a store';
    throw this.lostWrite(
      isCurrent
        ? `${full.dtype} copy of ${flat.dtype} values${rests}`
        : 'copy that a step or load has passed',
    );
  }

  /** @param what was written into */
  protected lostWrite(what: string): Error {
    return new StateError(
      `flat parameter '${this.name}': expected its values as they were, got a write into the ${what}, which would be lost. Load a state dict instead.`,
    );
  }

  /** Frees `full`; its identity stays. */
  drop(): void {
    if (this.full !== this.flat.storage) {
      this.full.free();
    }
  }

  dispose(): void {
    this.abandonLoads();
    if (!this.#hasValues) {
      for (const { tensor } of this.parameters) {
        tensor.storage.release();
      }
    }
    this.home?.close();
    this.flat.grad?.dispose();
    this.flat.grad = undefined;
    if (this.full !== this.flat.storage) {
      this.full.release();
    }
    this.flat.dispose();
  }
}
