// The copy of all values of a flat that computation reads: loads make it, drop frees it, and what
// the program writes into it goes back to the flat. See Note [flat parameter].

import {
  byteSize,
  type DType,
  type HostBlock,
  StateError,
  type Storage,
  type Tensor,
  type View,
} from '@shardweave/tensor-core';
import { decodeTo } from '../parameters/encoded-parameter.js';
import { decodeLeaves } from './decode-leaves.js';
import { type FlatLayout, type FlatPlace, flatLayout } from './layout/flat-layout.js';
import type { HostBuffers } from './stores/host-buffers.js';
import type { StoredParameter } from './stores/stored-parameter.js';

/** How a whole copy of a flat's values is made. */
export interface FullCopyOptions {
  /** The dtype of computation. Default: that of the leaves. */
  readonly computeDType?: DType;
  /** The ledger's name for the copy. */
  readonly fullTag?: 'gathered' | 'parameter';
  /** Advice for the error that reading a leaf throws while the copy is not filled. */
  readonly absentHint?: string;
  /** The pool of buffers for bytes on their way to the device. */
  hostBuffers?(): HostBuffers;
  /**
   * Makes the whole, a host buffer in `loadDType`, from this device's part of it. `stored` is that
   * part as read from its home, and undefined where it rests on the device. The result is undefined
   * where the device has the whole. Default: the part is the whole.
   */
  gatherWhole?(stored: Promise<Uint8Array> | undefined): Promise<Uint8Array> | undefined;
  /**
   * The error of a write that the flat cannot take. Default: a StateError.
   * @param what the copy that was written into
   */
  lostWrite?(what: string): Error;
}

/** What a copy is made from. */
export interface FullCopySource {
  readonly name: string;
  readonly form: string;
  readonly flat: Tensor;
  readonly leaves: readonly Tensor[];
  /** Where each leaf lies in the whole, as it rests. */
  readonly layout: FlatLayout;
  /** The elements of the whole that this device keeps in `flat`. */
  readonly own: FlatPlace;
  /** Whether this device keeps all of them. */
  readonly isAlone: boolean;
  /** The values in a store; undefined where they rest on the device. */
  readonly stored: StoredParameter | undefined;
}

/** A load that has begun. */
export interface FlatLoad {
  /** The whole in a host buffer; undefined where the device has the values already. */
  readonly bytes: Promise<Uint8Array> | undefined;
  /** The version of the flat whose values it brings. */
  readonly version: number;
}

/** All values of a flat for computation, while they are there. See Note [flat parameter]. */
export class FullCopy {
  readonly storage: Storage;
  /** Where each leaf lies in the storage: as it rests, unless words are decoded into it. */
  readonly layout: FlatLayout;
  readonly #source: FullCopySource;
  readonly #options: FullCopyOptions;
  /** Whether a load decodes words; ops read those of blocks themselves. */
  readonly #isDecoded: boolean;
  /**
   * Loads that are neither finished nor abandoned. Whoever removes one from the set gives its
   * buffer back.
   */
  readonly #loads = new Set<FlatLoad>();
  /**
   * Both versions right after the last load: the flat's, whose values the storage then had, and
   * that of the storage. A different version later means that something was written since.
   */
  #loadedVersion = -1;
  #fullVersion = -1;
  /** The blocks among the buffers that `takeBuffer` gave. */
  readonly #blocks = new Map<Uint8Array, HostBlock>();

  constructor(source: FullCopySource, options: FullCopyOptions) {
    const { flat, leaves, layout, isAlone, stored } = source;
    const { computeDType = leaves[0]?.dtype ?? 'f32', fullTag = 'parameter' } = options;
    this.#source = source;
    this.#options = options;
    const inBlocks = leaves.filter(({ blocks }) => blocks !== undefined);
    for (const leaf of inBlocks) {
      decodeTo(leaf, computeDType);
    }
    const dtype = inBlocks.length > 0 ? 'u32' : computeDType;
    this.#isDecoded = flat.dtype === 'u32' && inBlocks.length === 0;
    this.layout = this.#isDecoded ? flatLayout(leaves.map(({ size }) => size)) : layout;
    this.storage =
      isAlone && dtype === flat.dtype && stored === undefined
        ? flat.storage
        : flat.device.storage(this.layout.elementCount, dtype, fullTag);
    this.storage.absentHint = options.absentHint;
  }

  /**
   * Takes a buffer for `gatherWhole` to fill, in the device's memory where computation can use it
   * there. It resolves when the buffer may be written.
   */
  async takeBuffer(): Promise<Uint8Array> {
    const { wholeBytes } = this;
    const isUsable = !this.#isDecoded && !this.#isFlat;
    const { blocks } = this.storage.device.pool;
    const block = isUsable ? blocks.take(this.storage.byteLength) : undefined;
    if (block === undefined) {
      return this.#options.hostBuffers!().take(wholeBytes);
    }
    const bytes = block.bytes.subarray(0, wholeBytes);
    this.#blocks.set(bytes, block);
    await block.settle();
    return bytes;
  }

  /**
   * Lets the device bring its own part, in `loadDType`, to its place in a buffer of takeBuffer,
   * before it does what is queued later. Undefined where the buffer is not in the device's memory.
   */
  ownPlacer(bytes: Uint8Array, part: View): (() => void) | undefined {
    const block = this.#blocks.get(bytes);
    const byteOffset = this.#source.own.start * byteSize(part.dtype);
    return block && (() => block.queueCopy(part, byteOffset));
  }

  /** Whether computation uses the values where they rest. */
  get #isFlat(): boolean {
    return this.storage === this.#source.flat.storage;
  }

  /**
   * The dtype in which a load brings the whole: u32 words where the leaves are encoded, otherwise
   * the dtype of computation.
   */
  get loadDType(): DType {
    return this.#isDecoded ? 'u32' : this.storage.dtype;
  }

  /** Bytes of the whole as a load brings it, padding included. */
  get wholeBytes(): number {
    return this.#source.layout.elementCount * byteSize(this.loadDType);
  }

  /**
   * Whether the storage is filled and current. Storages and their versions answer this; a flag
   * could be wrong after somebody else wrote or freed them.
   */
  get isPresent(): boolean {
    return this.#isFlat || (this.storage.isFilled && this.#isCurrent);
  }

  /** Whether the last load brought the values that rest now. */
  get #isCurrent(): boolean {
    return this.#loadedVersion === this.#source.flat.storage.version;
  }

  /** Begins to bring the values to the device for computation, without waiting for anything. */
  startLoad(): FlatLoad {
    const { flat, stored } = this.#source;
    const { version } = flat.storage;
    const part = stored?.readForLoad(this.loadDType);
    const { gatherWhole } = this.#options;
    const bytes = gatherWhole === undefined ? part : gatherWhole(part);
    bytes?.catch(() => undefined); // seen by finishLoad
    const load = { bytes, version };
    this.#loads.add(load);
    return load;
  }

  /**
   * Waits for a load and makes the values present.
   * @throws {StateError} where the load was abandoned meanwhile
   */
  async finishLoad(load: FlatLoad): Promise<void> {
    const { name, flat } = this.#source;
    const { backend } = flat.device;
    const bytes = await load.bytes;
    if (bytes !== undefined) {
      // Without this wait a device that lags behind would let copies pile up, one for each unit.
      await backend.whenWritable?.();
    }
    if (!this.#loads.delete(load)) {
      throw new StateError(
        `flat parameter '${name}': expected the model to stay as it was while this was loaded, but it was disposed or failed meanwhile. Await every call before the next one.`,
      );
    }
    if (this.#isFlat) {
      return;
    }
    const block = bytes && this.#blocks.get(bytes);
    if (block !== undefined) {
      this.#blocks.delete(bytes!);
      this.storage.refill(() => this.storage.hold(block));
    } else {
      await this.#fill(bytes);
    }
    this.#noteLoaded(load.version);
  }

  async #fill(bytes: Uint8Array | undefined): Promise<void> {
    const { flat, leaves, layout } = this.#source;
    try {
      this.storage.fill();
      if (this.#isDecoded) {
        const from = { flat: flat.storage, bytes, words: layout };
        const into = { full: this.storage, values: this.layout };
        await this.storage.refill(() => decodeLeaves(leaves, { ...from, ...into }));
      } else if (bytes === undefined) {
        flat.device.backend.run('cast', { x: flat.view(), out: this.storage.view() });
      } else {
        this.storage.refill(() => this.storage.write(bytes));
      }
    } finally {
      this.give(bytes);
    }
  }

  /** Allocates what a load would allocate, without any values, for a dry run. */
  fillDry(): void {
    const { flat, layout } = this.#source;
    this.storage.fill();
    if (this.#isDecoded) {
      const words = flat.device.storage(layout.elementCount, 'u32', 'staging');
      words.fill(); // decoding on the device holds the words in such a storage
      words.release();
    }
    this.#noteLoaded(flat.storage.version);
  }

  #noteLoaded(version: number): void {
    this.#loadedVersion = version;
    this.#fullVersion = this.storage.version;
  }

  /** Gives up the loads that were begun: finishLoad refuses them, and buffers go back. */
  abandonLoads(): void {
    for (const { bytes } of this.#loads) {
      bytes?.then(
        (loaded) => this.give(loaded),
        () => undefined,
      );
    }
    this.#loads.clear();
  }

  /** Gives a buffer of takeBuffer back, which nobody writes any more. */
  give(bytes: Uint8Array | undefined): void {
    const block = bytes && this.#blocks.get(bytes);
    if (block !== undefined) {
      this.#blocks.delete(bytes!);
      block.release();
    } else if (bytes !== undefined) {
      this.#options.hostBuffers!().give(bytes);
    }
  }

  /**
   * Copies what the program has written into the storage to the flat, and frees the storage. It
   * does nothing where nobody has written.
   * @throws {StateError} where the flat cannot take the write, which is then lost; the storage is
   * freed
   */
  keepWrites(): void {
    const { storage: full } = this;
    const { name, form, flat, own, stored } = this.#source;
    if (this.#isFlat || !full.isFilled || full.version === this.#fullVersion) {
      return;
    }
    const isCurrent = this.#isCurrent;
    if (isCurrent && full.dtype === flat.dtype && stored === undefined) {
      const written = full.view(own.start, own.length);
      flat.device.backend.run('cast', { x: written, out: flat.view() });
      flat.storage.markWritten(); // whoever wrote into the copy has told its graphs
      full.free();
      return;
    }
    full.free();
    const rests = stored === undefined ? '' : ' in a store';
    const what = isCurrent
      ? `${full.dtype} copy of ${form} values${rests}`
      : 'copy that a step or load has passed';
    throw (
      this.#options.lostWrite?.(what) ??
      new StateError(
        `flat parameter '${name}': expected its values as they were, got a write into the ${what}, which would be lost. Load a state dict instead.`,
      )
    );
  }

  /** Frees the bytes. The Storage stays the same, for the next load. */
  drop(): void {
    if (!this.#isFlat) {
      this.storage.free();
    }
  }

  dispose(): void {
    this.abandonLoads();
    if (!this.#isFlat) {
      this.storage.release();
    }
  }
}
