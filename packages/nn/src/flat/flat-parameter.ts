// The parameters of a module as one: what rests between uses, and the copy that computation reads.
// Knows no schedule and no ranks: sharding and offload extend it by theirs.
//
// Note [flat parameter]
//   leaves  the module's parameter tensors; once their values are taken over they point into `full`
//   flat    the values in the leaves' own dtype, or one device's shard of them, with their
//           gradient: what the optimizer steps
//   full    all values in the dtype of computation; filled and freed under one identity, so what
//           autograd saved in forward is valid again in backward. Where it would be the same bytes
//           (one device has all, computes in their dtype, and they rest there) it is the flat's
//           storage itself. An encoded flat has its words in place of values, which `full` gets
//           decoded
//   home    where values, gradient and state rest, if not on the device: `flat` is empty but for a
//           step

import {
  byteSize,
  type Device,
  type DType,
  StateError,
  type Storage,
  Tensor,
} from '@shardweave/tensor-core';
import { decodeLeaves } from './decode-leaves.js';
import { dropRecipe } from './deferred-parameter.js';
import { dropEncoded, encodingOf } from './encoded-parameter.js';
import { type FlatLayout, type FlatPlace, flatLayout, pieceIn } from './flat-layout.js';
import { setFlatHome } from './homes/flat-home.js';
import type { HostBuffers } from './homes/host-buffers.js';
import { StoredFlat, type StoredFlatOptions } from './homes/stored-flat.js';
import { drawLeaves, partsOf, readLeaves } from './leaf-values.js';

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
  /** For errors and traces. */
  readonly name: string;
  readonly device: Device;
  /** All of one dtype, all encoded or none. */
  readonly parameters: readonly FlatLeaf[];
  /**
   * The leaves' places in the whole as it rests (restSize), which ends in padding so that shards
   * are equal.
   */
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
  /** The whole as it comes, a host buffer; undefined: the device has it. */
  readonly bytes: Promise<Uint8Array> | undefined;
  /** The flat's version that it brings. */
  readonly version: number;
}

/**
 * The parameters of a module as one: the values that rest between uses (whole, or a shard of them),
 * and the whole copy that computation reads while it is there. See Note [flat parameter].
 */
export class FlatParameter {
  readonly name: string;
  readonly parameters: readonly FlatLeaf[];
  /** Whether words rest in place of values: frozen, without a gradient or state. */
  readonly isEncoded: boolean;
  /**
   * One-dimensional; its storage is empty until values are taken over, and while they rest
   * elsewhere.
   */
  readonly flat: Tensor;
  readonly full: Storage;
  /** Undefined where everything rests on the device. */
  readonly home: StoredFlat | undefined;
  readonly #layout: FlatLayout;
  /** The leaves' places in `full`: those of the whole, but for encoded ones. */
  readonly #fullLayout: FlatLayout;
  /** Its elements of the whole. */
  readonly #own: FlatPlace;
  readonly #hostBuffers: () => HostBuffers;
  /**
   * Loads that were begun. Whoever takes one out of it, finished or abandoned, gives its buffer
   * back.
   */
  readonly #loads = new Set<FlatLoad>();
  #hasValues = false;
  /** The versions of the flat that `full` has the values of, and of `full` when it had got them. */
  #loadedVersion = -1;
  #fullVersion = -1;

  /**
   * Lays the parameters out and tells optimizers where their pieces are; values stay until
   * takeOver.
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

  /** Where the values rest; undefined on the device. */
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
   * In what dtype the whole comes to be loaded: the words of encoded ones, else that of
   * computation.
   */
  get loadDType(): DType {
    return this.isEncoded ? 'u32' : this.full.dtype;
  }

  /** Bytes of the whole as it comes, padding included. */
  get wholeBytes(): number {
    return this.#layout.elementCount * byteSize(this.loadDType);
  }

  /** In words what rests: a dtype, or what it is encoded as. */
  get form(): string {
    const formats = this.#leaves.map((leaf) => encodingOf(leaf)?.format);
    return this.isEncoded ? [...new Set(formats)].join(' and ') : this.flat.dtype;
  }

  /** Bytes of `flat`. */
  get byteLength(): number {
    return this.flat.size * byteSize(this.flat.dtype);
  }

  // ---- values ----------------------------------------------------------------------------------

  /** Whether it has the leaves' values; before, they have them themselves. */
  get hasValues(): boolean {
    return this.#hasValues;
  }

  /**
   * Takes the leaves' values over and frees their own memory; once. Where it rejects they have them
   * as before. A store that has values of an earlier process keeps them.
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
      await (fill === undefined ? this.#fillParts() : fill());
      await home?.endFilling();
    }
    this.#pointLeaves();
  }

  /** As takeOver, at once, for values that are on the device and stay there. */
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

  /** Part by part: one is made while the one before it comes to the host. */
  async #fillParts(): Promise<void> {
    let before = Promise.resolve();
    for (const part of partsOf(this.flat)) {
      const filled = this.fillPart(part);
      filled.catch(() => undefined); // seen when the next one has begun
      await before;
      before = filled;
    }
    await before;
  }

  /** Writes a part of `flat` from the leaves here; in takeOver, before they point into it. */
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

  /** Host bytes of a run of the whole before takeOver, as it rests. */
  async readLeaves({ start, length }: FlatPlace): Promise<Uint8Array> {
    const bytes = new Uint8Array(length * byteSize(this.flat.dtype));
    await readLeaves(bytes, { start, length, ...this.#whole });
    return bytes;
  }

  get #whole() {
    return { leaves: this.#leaves, layout: this.#layout };
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

  // ---- presence --------------------------------------------------------------------------------

  /**
   * Whether `full` is there and current: read from the storage and its version, never from a flag.
   */
  get isPresent(): boolean {
    if (this.full === this.flat.storage) {
      return true;
    }
    return this.full.isFilled && this.#loadedVersion === this.flat.storage.version;
  }

  /** Begins to bring the values to where they are computed with; never waits. */
  startLoad(): FlatLoad {
    const { version } = this.flat.storage;
    const bytes = this.joined(this.#valueHome?.readForLoad(this.loadDType));
    bytes?.catch(() => undefined); // seen by finishLoad
    const load = { bytes, version };
    this.#loads.add(load);
    return load;
  }

  /**
   * The whole as a host buffer in `loadDType`, of which `stored` is this device's part, read
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
    if (bytes !== undefined) {
      // Copies that wait for a late device would add up, one of each unit.
      await this.device.backend.whenWritable?.();
    }
    if (!this.#loads.delete(load)) {
      throw new StateError(
        `flat parameter '${this.name}': expected the model to stay as it was while this was loaded, but it was disposed or failed meanwhile. Await every call before the next one.`,
      );
    }
    if (this.full === this.flat.storage) {
      return; // it is computed with where it rests, and came along with others of its module
    }
    try {
      this.full.fill();
      if (this.isEncoded) {
        await this.#decode(bytes);
      } else if (bytes === undefined) {
        this.device.backend.run('cast', { x: this.flat.view(), out: this.full.view() });
      } else {
        this.full.write(bytes);
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

  /** Memory for values without any, for a dry run. */
  fillDry(): void {
    this.full.fill();
    if (this.isEncoded) {
      const words = this.device.storage(this.#layout.elementCount, 'u32', 'staging');
      words.fill(); // a decoder on the device has them there
      words.release();
    }
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
   * Takes what the program has written into `full` over into the flat, and frees `full`. Nothing
   * where nobody has written.
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
        ? `${full.dtype} copy of ${this.form} values${rests}`
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
