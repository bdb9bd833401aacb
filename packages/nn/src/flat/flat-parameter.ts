// All parameters of a module as one flat tensor: the values that rest between uses, and the whole
// copy that computation reads. This file knows no schedule and no ranks; sharding and offload add
// theirs.
//
// Note [flat parameter]
//   leaves  The module's parameter tensors. After takeOver they point into `full`.
//   flat    The values in the leaves' own dtype, or this device's shard of them, and their
//           gradient. The optimizer steps this tensor. An encoded flat holds encoded words instead
//           of values.
//   full    All values in the dtype of computation; an encoded flat's words are decoded into it.
//           It is one Storage that is filled and freed again and again, so what autograd saved in
//           forward is valid again in backward. `full` is the flat's own storage where both would
//           be the same bytes: one device has all values, computes in their dtype, and they rest
//           on it.
//   home    The store where values, gradient and state rest, if not on the device. The storage of
//           `flat` is then empty except during a step.
//
// Example: leaves of 200 and 5 elements, two devices, f32 that computes in f16.
//   whole   0..199 first leaf | 200..255 pad | 256..260 second leaf | 261..511 pad
//   flat    256 f32 elements on each device: 0..255 and 256..511 of the whole
//   full    512 f16 elements on each device, while computation uses them

import {
  byteSize,
  type Device,
  type DType,
  StateError,
  type Storage,
  Tensor,
} from '@shardweave/tensor-core';
import type { ElementRange } from '../host-tensor.js';
import { dropRecipe } from '../parameters/deferred-parameter.js';
import { dropEncoded, encodingOf } from '../parameters/encoded-parameter.js';
import { decodeLeaves } from './decode-leaves.js';
import { type FlatLayout, type FlatPlace, flatLayout, pieceIn } from './layout/flat-layout.js';
import { drawLeaves, partsOf, readLeaves } from './leaf-values.js';
import { readWords } from './read-words.js';
import { setFlatHome } from './stores/flat-home.js';
import type { HostBuffers } from './stores/host-buffers.js';
import { StoredFlat, type StoredFlatOptions } from './stores/stored-flat.js';

/** One parameter of a module. */
export interface FlatLeaf {
  /** Its path below the wrapped module. */
  readonly path: string;
  readonly tensor: Tensor;
}

/**
 * What a FlatParameter is made of: the leaves, their places in the whole, and which part of it this
 * device keeps.
 */
export interface FlatParameterOptions {
  /** The name that errors and traces show. */
  readonly name: string;
  readonly device: Device;
  /** They share one dtype, and either all of them are encoded or none is. */
  readonly parameters: readonly FlatLeaf[];
  /**
   * Where each leaf lies in the whole, counted in the elements in which it rests (restSize). The
   * whole ends in padding, so that all shards are equally long.
   */
  readonly layout: FlatLayout;
  /** This device has part `index` of `count` equal parts. Default: the only part of one. */
  readonly shard?: { readonly index: number; readonly count: number };
  /** The dtype of computation. Default: that of the leaves. */
  readonly computeDType?: DType;
  /** The ledger's name for `full`. */
  readonly fullTag?: 'gathered' | 'parameter';
  /** Advice for the error that reading a leaf throws while `full` is not filled. */
  readonly absentHint?: string;
  /** The store where the flat rests, if it does not rest on the device. */
  readonly rest?: Omit<StoredFlatOptions, 'flat' | 'hostBuffers'> | undefined;
  /** The pool of buffers for bytes on their way to the device. */
  hostBuffers?(): HostBuffers;
}

/** A load that has begun. */
export interface FlatLoad {
  /** The whole in a host buffer; undefined where the device has the values already. */
  readonly bytes: Promise<Uint8Array> | undefined;
  /** The version of the flat whose values it brings. */
  readonly version: number;
}

/**
 * The parameters of a module as one: the values that rest between uses (whole, or a shard of them),
 * and the whole copy that computation reads while it is there. See Note [flat parameter].
 */
export class FlatParameter {
  readonly name: string;
  readonly parameters: readonly FlatLeaf[];
  /** Whether encoded words rest in place of values. Such a flat has no gradient and no state. */
  readonly isEncoded: boolean;
  /**
   * A one-dimensional tensor. Its storage is empty until takeOver, and whenever the values rest in
   * a store.
   */
  readonly flat: Tensor;
  readonly full: Storage;
  /** Where the flat rests; undefined where everything rests on the device. */
  readonly home: StoredFlat | undefined;
  readonly #layout: FlatLayout;
  /** Where each leaf lies in `full`: as in `#layout`, unless the leaves are encoded. */
  readonly #fullLayout: FlatLayout;
  /** The elements of the whole that this device keeps in `flat`. */
  readonly #own: FlatPlace;
  readonly #hostBuffers: () => HostBuffers;
  /**
   * Loads that are neither finished nor abandoned. Whoever removes one from the set gives its
   * buffer back.
   */
  readonly #loads = new Set<FlatLoad>();
  #hasValues = false;
  /**
   * Both versions right after the last load: the flat's, whose values `full` then had, and that of
   * `full`. A different version later means that something was written since.
   */
  #loadedVersion = -1;
  #fullVersion = -1;

  /**
   * Lays the parameters out and tells optimizers where their pieces are. The values stay in the
   * leaves until takeOver.
   */
  constructor(options: FlatParameterOptions) {
    const { name, device, parameters, layout, rest } = options;
    const { shard = { index: 0, count: 1 } } = options;
    this.name = name;
    this.parameters = parameters;
    this.#layout = layout;
    const hostBuffers = () => options.hostBuffers!();
    this.#hostBuffers = hostBuffers;
    const leaves = parameters.map(({ tensor }) => tensor);
    const valueDType = leaves[0]?.dtype ?? 'f32';
    this.isEncoded = leaves.some((leaf) => encodingOf(leaf) !== undefined);
    const dtype = this.isEncoded ? 'u32' : valueDType;
    this.#fullLayout = this.isEncoded ? flatLayout(leaves.map(({ size }) => size)) : layout;
    const { computeDType = valueDType, fullTag = 'parameter' } = options;
    const length = layout.elementCount / shard.count;
    this.#own = { start: shard.index * length, length };
    const storage = device.storage(length, dtype, 'parameter');
    this.flat = new Tensor(storage, [length], 0, !this.isEncoded);
    this.flat.name = name;
    this.home = rest && new StoredFlat({ ...rest, flat: this.flat, hostBuffers });
    if (this.home !== undefined) {
      setFlatHome(this.flat, this.home);
    }
    const isWhole = shard.count === 1 && computeDType === dtype && this.#valueHome === undefined;
    this.full = isWhole ? storage : device.storage(this.fullElements, computeDType, fullTag);
    this.full.absentHint = options.absentHint;
    parameters.forEach(({ tensor }, index) => {
      const piece = pieceIn(layout, index, this.#own);
      tensor.piece = { flat: this.flat, ...piece, numShards: shard.count };
    });
  }

  get #leaves(): Tensor[] {
    return this.parameters.map(({ tensor }) => tensor);
  }

  get device(): Device {
    return this.flat.device;
  }

  /** The home of the values; undefined where they rest on the device. */
  get #valueHome(): StoredFlat | undefined {
    return this.home?.holdsState ? this.home : undefined;
  }

  /** Elements of `full`, padding included. */
  get fullElements(): number {
    return this.#fullLayout.elementCount;
  }

  /** Bytes of `full`, padding included. */
  get fullBytes(): number {
    return this.fullElements * byteSize(this.full.dtype);
  }

  /**
   * The dtype in which a load brings the whole: u32 words where it is encoded, otherwise the dtype
   * of computation.
   */
  get loadDType(): DType {
    return this.isEncoded ? 'u32' : this.full.dtype;
  }

  /** Bytes of the whole as a load brings it, padding included. */
  get wholeBytes(): number {
    return this.#layout.elementCount * byteSize(this.loadDType);
  }

  /** What rests, for people: a dtype such as f32, or the formats of encoded leaves. */
  get form(): string {
    const formats = this.#leaves.map((leaf) => encodingOf(leaf)?.format);
    return this.isEncoded ? [...new Set(formats)].join(' and ') : this.flat.dtype;
  }

  /** Bytes of `flat`. */
  get byteLength(): number {
    return this.flat.size * byteSize(this.flat.dtype);
  }

  // ---- values ----------------------------------------------------------------------------------

  /** Whether the values were taken over. Until then the leaves hold them. */
  get hasValues(): boolean {
    return this.#hasValues;
  }

  /**
   * Takes the leaves' values over and frees the leaves' own memory. A second call does nothing. If
   * it rejects, the leaves still hold their values. Where the store resumes from an earlier
   * process, its values stay and those of the leaves are dropped.
   * @param fill writes all of `flat`; default: from the leaves of this device
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
      await (fill === undefined ? this.#fillParts() : fill());
      await home?.endFilling();
    }
    this.#pointLeaves();
  }

  /** Does the same without waiting, for values that are on the device and stay there. */
  takeOverHere(): void {
    this.flat.storage.fill();
    drawLeaves(this.flat, { ...this.#own, ...this.#whole });
    this.#pointLeaves();
  }

  #pointLeaves(): void {
    this.#hasValues = true;
    this.#leaves.forEach((leaf, index) => {
      const own = leaf.storage;
      dropRecipe(leaf);
      dropEncoded(leaf);
      leaf.rebind(this.full, this.#fullLayout.offsets[index]!);
      own.release();
    });
  }

  /** Fills part by part; a part is made while the one before it comes to the host. */
  async #fillParts(): Promise<void> {
    let before = Promise.resolve();
    for (const part of partsOf(this.flat)) {
      const filled = this.fillPart(part);
      filled.catch(() => undefined); // awaited below, after the next part has begun
      await before;
      before = filled;
    }
    await before;
  }

  /** Writes a part of `flat` from the leaves, which hold their values until takeOver ends. */
  async fillPart({ start, length }: FlatPlace): Promise<void> {
    const run = { start: this.#own.start + start, length, ...this.#whole };
    const home = this.#valueHome;
    if (home === undefined && !this.isEncoded) {
      drawLeaves(new Tensor(this.flat.storage, [length], start), run);
    } else if (home === undefined) {
      await this.write(await this.readLeaves(run), start * byteSize(this.flat.dtype));
    } else {
      await readLeaves(home.filling(start, length), run);
    }
  }

  /** Host bytes of a run of the whole as it rests. Call it before takeOver. */
  async readLeaves({ start, length }: FlatPlace): Promise<Uint8Array> {
    const bytes = new Uint8Array(length * byteSize(this.flat.dtype));
    await readLeaves(bytes, { start, length, ...this.#whole });
    return bytes;
  }

  get #whole() {
    return { leaves: this.#leaves, layout: this.#layout };
  }

  /** Bytes of `flat`, read from the device or its home. */
  async read(byteOffset = 0, byteLength = this.byteLength): Promise<Uint8Array> {
    const source = this.#valueHome;
    return source === undefined
      ? this.flat.storage.read(byteOffset, byteLength)
      : source.readParameter(byteOffset, byteLength);
  }

  /**
   * The bytes at rest of a leaf, or of some of its elements, where this device has the whole flat.
   */
  readLeaf(leaf: Tensor, part?: ElementRange): Promise<Uint8Array> {
    const { start, length } = leaf.piece!;
    const { first, count } = part ?? { first: 0, count: length };
    const elementBytes = byteSize(this.flat.dtype);
    const from = (start + first) * elementBytes;
    return readWords((...range) => this.read(...range), from, from + count * elementBytes);
  }

  /**
   * Writes bytes of `flat`, in whole words. A copy that was loaded before is stale afterwards.
   * @param changed the elements of `full` whose values this changes, for graphs that saved them.
   * Default: those of the bytes.
   */
  async write(
    bytes: Uint8Array,
    byteOffset = 0,
    changed: readonly FlatPlace[] = [this.#fullRun(byteOffset, bytes.byteLength)],
  ): Promise<void> {
    this.full.markOutdated('a load', changed);
    const home = this.#valueHome;
    if (home === undefined) {
      return this.flat.storage.refill(() => this.flat.storage.write(bytes, byteOffset));
    }
    this.flat.storage.markWritten('a load', []);
    await home.writeParameter(bytes, byteOffset);
  }

  /** The elements of `full` whose values lie in these bytes of `flat`. */
  #fullRun(byteOffset: number, byteLength: number): FlatPlace {
    if (this.isEncoded) {
      return { start: 0, length: this.fullElements }; // words lie elsewhere than their values
    }
    const elementBytes = byteSize(this.flat.dtype);
    return {
      start: this.#own.start + byteOffset / elementBytes,
      length: byteLength / elementBytes,
    };
  }

  // ---- presence --------------------------------------------------------------------------------

  /**
   * Whether `full` is filled and current. Storages and their versions answer this; a flag could be
   * wrong after somebody else wrote or freed them.
   */
  get isPresent(): boolean {
    if (this.full === this.flat.storage) {
      return true;
    }
    return this.full.isFilled && this.#loadedVersion === this.flat.storage.version;
  }

  /** Begins to bring the values to the device for computation, without waiting for anything. */
  startLoad(): FlatLoad {
    const { version } = this.flat.storage;
    const bytes = this.gatherWhole(this.#valueHome?.readForLoad(this.loadDType));
    bytes?.catch(() => undefined); // seen by finishLoad
    const load = { bytes, version };
    this.#loads.add(load);
    return load;
  }

  /**
   * Makes the whole, a host buffer in `loadDType`, from this device's part of it. `stored` is that
   * part as read from its home, and undefined where it rests on the device. Here the part is the
   * whole; sharding overrides this and gathers the parts of all ranks. The result is undefined
   * where the device has the whole.
   */
  protected gatherWhole(stored: Promise<Uint8Array> | undefined): Promise<Uint8Array> | undefined {
    return stored;
  }

  /**
   * Waits for a load and makes the values present.
   * @throws {StateError} where the load was abandoned meanwhile
   */
  async finishLoad(load: FlatLoad): Promise<void> {
    const bytes = await load.bytes;
    if (bytes !== undefined) {
      // Without this wait a device that lags behind would let copies pile up, one for each unit.
      await this.device.backend.whenWritable?.();
    }
    if (!this.#loads.delete(load)) {
      throw new StateError(
        `flat parameter '${this.name}': expected the model to stay as it was while this was loaded, but it was disposed or failed meanwhile. Await every call before the next one.`,
      );
    }
    if (this.full === this.flat.storage) {
      return; // computation uses the values where they rest
    }
    try {
      this.full.fill();
      if (this.isEncoded) {
        await this.full.refill(() => this.#decode(bytes));
      } else if (bytes === undefined) {
        this.device.backend.run('cast', { x: this.flat.view(), out: this.full.view() });
      } else {
        this.full.refill(() => this.full.write(bytes));
      }
    } finally {
      this.#give(bytes);
    }
    this.#noteLoaded(load.version);
  }

  async #decode(bytes: Uint8Array | undefined): Promise<void> {
    await decodeLeaves(this.#leaves, {
      flat: this.flat.storage,
      bytes,
      words: this.#layout,
      full: this.full,
      values: this.#fullLayout,
    });
  }

  /** Allocates what a load would allocate, without any values, for a dry run. */
  fillDry(): void {
    this.full.fill();
    if (this.isEncoded) {
      const words = this.device.storage(this.#layout.elementCount, 'u32', 'staging');
      words.fill(); // decoding on the device holds the words in such a storage
      words.release();
    }
    this.#noteLoaded(this.flat.storage.version);
  }

  #noteLoaded(version: number): void {
    this.#loadedVersion = version;
    this.#fullVersion = this.full.version;
  }

  /** Gives up the loads that were begun: finishLoad refuses them, and buffers go back. */
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
   * Copies what the program has written into `full` to the flat, and frees `full`. It does nothing
   * where nobody has written.
   * @throws {StateError} where the flat cannot take the write, which is then lost; `full` is freed
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
      flat.storage.markWritten(); // whoever wrote into `full` has told its graphs
      full.free();
      return;
    }
    full.free();
    const rests = this.#valueHome === undefined ? '' : ' in a store';
    throw this.lostWrite(
      isCurrent
        ? `${full.dtype} copy of ${this.form} values${rests}`
        : 'copy that a step or load has passed',
    );
  }

  /** @param what the copy that was written into, for the message */
  protected lostWrite(what: string): Error {
    return new StateError(
      `flat parameter '${this.name}': expected its values as they were, got a write into the ${what}, which would be lost. Load a state dict instead.`,
    );
  }

  /** Frees the bytes of `full`. The Storage stays the same, for the next load. */
  drop(): void {
    if (this.full !== this.flat.storage) {
      this.full.free();
    }
  }

  dispose(): void {
    this.abandonLoads();
    if (!this.#hasValues) {
      for (const leaf of this.#leaves) {
        leaf.storage.release();
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
