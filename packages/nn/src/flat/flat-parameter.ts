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

import { byteSize, type Device, type DType, StateError, Tensor } from '@shardweave/tensor-core';
import type { ElementRange } from '../host-tensor.js';
import { dropRecipe } from '../parameters/deferred-parameter.js';
import { dropEncoded, encodingOf } from '../parameters/encoded-parameter.js';
import { FullCopy, type FullCopyOptions } from './full-copy.js';
import { giveBack } from './give-back.js';
import { type FlatLayout, type FlatPlace, pieceIn } from './layout/flat-layout.js';
import { drawLeaves, hasValues, type LeafRun, partsOf, readLeaves } from './leaf-values.js';
import { readWords } from './read-words.js';
import { setFlatHome } from './stores/flat-home.js';
import { StoredFlat, type StoredFlatOptions } from './stores/stored-flat.js';
import type { StoredParameter } from './stores/stored-parameter.js';
import { whenSettled } from './when-settled.js';

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
export interface FlatParameterOptions extends FullCopyOptions {
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
  /** The store where the flat rests, if it does not rest on the device. */
  readonly rest?: StoredFlatOptions | undefined;
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
  /** What rests, for people: a dtype such as f32, or the formats of encoded leaves. */
  readonly form: string;
  /**
   * A one-dimensional tensor. Its storage is empty until takeOver, and whenever the values rest in
   * a store.
   */
  readonly flat: Tensor;
  /** All values, for computation. */
  readonly full: FullCopy;
  /** Where the flat rests; undefined where everything rests on the device. */
  readonly home: StoredFlat | undefined;
  readonly #whole: { readonly leaves: readonly Tensor[]; readonly layout: FlatLayout };
  /** The elements of the whole that this device keeps in `flat`. */
  readonly #own: FlatPlace;
  /** The dtypes of the leaves before they point into `full`. */
  readonly #dtypes: readonly DType[];
  /** Whether the values were taken over. Until then the leaves hold them. */
  #hasValues = false;
  #isGivenBack = false;
  /** A leaf that had no values when they were taken over, and the version of `flat` after that. */
  #missing: { readonly leaf: Tensor; readonly version?: number } | undefined;

  /**
   * Lays the parameters out and tells optimizers where their pieces are. The values stay in the
   * leaves until takeOver.
   */
  constructor(options: FlatParameterOptions) {
    const { name, device, parameters, layout, rest } = options;
    const { shard = { index: 0, count: 1 } } = options;
    this.name = name;
    this.parameters = parameters;
    const leaves = parameters.map(({ tensor }) => tensor);
    this.#whole = { leaves, layout };
    this.#dtypes = leaves.map((leaf) => leaf.dtype);
    const formats = leaves.flatMap((leaf) => encodingOf(leaf)?.format ?? []);
    this.isEncoded = formats.length > 0;
    const dtype = this.isEncoded ? 'u32' : (leaves[0]?.dtype ?? 'f32');
    const form = this.isEncoded ? [...new Set(formats)].join(' and ') : dtype;
    const length = layout.elementCount / shard.count;
    const own = { start: shard.index * length, length };
    this.#own = own;
    const storage = device.storage(length, dtype, 'parameter');
    const flat = new Tensor(storage, [length], 0, !this.isEncoded);
    flat.name = name;
    this.flat = flat;
    this.home = rest && new StoredFlat(flat, rest, () => options.hostBuffers!());
    if (this.home !== undefined) {
      setFlatHome(flat, this.home);
    }
    this.form = form;
    const stored = this.#stored;
    const isAlone = shard.count === 1;
    this.full = new FullCopy({ name, form, flat, leaves, layout, own, isAlone, stored }, options);
    parameters.forEach(({ tensor }, index) => {
      tensor.piece = { flat, ...pieceIn(layout, index, own), numShards: shard.count };
    });
  }

  /** The values in their store; undefined where they rest on the device. */
  get #stored(): StoredParameter | undefined {
    return this.home?.holdsState ? this.home.parameter : undefined;
  }

  /**
   * Takes the leaves' values over and frees the leaves' own memory. A second call does nothing. If
   * it rejects, the leaves still hold their values. Where the store resumes from an earlier
   * process, its values stay and those of the leaves are dropped. Leaves without memory, without a
   * recipe and without a source are to be loaded; zeros stand for them until then.
   * @param fill writes all of `flat`; default: from the leaves of this device
   */
  async takeOver(fill?: () => Promise<void>): Promise<void> {
    if (this.#hasValues) {
      return;
    }
    const stored = this.#stored;
    if (stored === undefined) {
      this.flat.storage.fill();
    }
    if (stored?.isResuming !== true) {
      stored?.beginFilling();
      await (fill === undefined ? this.#fillParts() : fill());
      await stored?.endFilling();
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
    this.#missing &&= { ...this.#missing, version: this.flat.storage.version };
    this.#whole.leaves.forEach((leaf, index) => {
      const own = leaf.storage;
      dropRecipe(leaf);
      dropEncoded(leaf);
      leaf.rebind(this.full.storage, this.full.layout.offsets[index]!);
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
    const run = this.#runOf({ start: this.#own.start + start, length });
    const stored = this.#stored;
    if (stored === undefined && !this.isEncoded) {
      drawLeaves(new Tensor(this.flat.storage, [length], start), run);
    } else if (stored === undefined) {
      await this.write(await this.readLeaves(run), start * byteSize(this.flat.dtype));
    } else {
      await readLeaves(stored.filling(start, length), run);
    }
  }

  /** Host bytes of a run of the whole as it rests. Call it before takeOver. */
  async readLeaves({ start, length }: FlatPlace): Promise<Uint8Array> {
    const bytes = new Uint8Array(length * byteSize(this.flat.dtype));
    await readLeaves(bytes, this.#runOf({ start, length }));
    return bytes;
  }

  /** A run of the leaves' values that are taken over; notes where some are yet to be loaded. */
  #runOf(run: FlatPlace): LeafRun {
    const { leaves, layout } = this.#whole;
    const isDry = this.flat.device.backend.isDry === true;
    const isMissing = leaves.map((leaf) => !isDry && !hasValues(leaf));
    if (isMissing.some((is, index) => is && pieceIn(layout, index, run).length > 0)) {
      this.#missing ??= { leaf: leaves[isMissing.indexOf(true)]! }; // alike on all ranks
    }
    return { ...run, leaves, layout, isToBeLoaded: true };
  }

  /**
   * @throws {StateError} where values that the leaves did not have are still to be loaded
   */
  requireLoaded(): void {
    if (this.#missing?.version !== this.flat.storage.version) {
      this.#missing = undefined;
      return;
    }
    throw new StateError(
      `flat parameter '${this.name}': expected its values to be loaded, got none of '${this.#missing.leaf.name}', which had none when it was wrapped. Load a state dict or a save first.`,
    );
  }

  /** Bytes of `flat`, read from the device or its home. */
  async read(byteOffset = 0, byteLength = this.flat.storage.byteLength): Promise<Uint8Array> {
    return (this.#stored ?? this.flat.storage).read(byteOffset, byteLength);
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
    this.full.storage.markOutdated('a load', changed);
    const stored = this.#stored;
    if (stored === undefined) {
      for (const reader of this.flat.storage.readers) {
        await reader.whenClosed();
      }
      await whenSettled(this.flat.storage);
      return this.flat.storage.refill(() => this.flat.storage.write(bytes, byteOffset));
    }
    this.flat.storage.markWritten('a load', []);
    await stored.write(bytes, byteOffset);
  }

  /** The elements of `full` whose values lie in these bytes of `flat`. */
  #fullRun(byteOffset: number, byteLength: number): FlatPlace {
    if (this.isEncoded) {
      // Words lie elsewhere than their values.
      return { start: 0, length: this.full.layout.elementCount };
    }
    const elementBytes = byteSize(this.flat.dtype);
    return {
      start: this.#own.start + byteOffset / elementBytes,
      length: byteLength / elementBytes,
    };
  }

  /**
   * Ends the flat and gives the leaves memory of their own, without waiting: with their values, as
   * it can where this device has all of them and they rest on it, or without, to be loaded again.
   */
  giveBack({ keepsValues }: { readonly keepsValues: boolean }): void {
    const { leaves, layout } = this.#whole;
    for (const [index, leaf] of leaves.entries()) {
      leaf.piece = undefined;
      leaf.gradSink = undefined;
      if (!this.#hasValues) {
        continue;
      }
      const at = layout.offsets[index]!;
      const values = keepsValues ? new Tensor(this.flat.storage, [leaf.size], at) : undefined;
      giveBack({ leaf, dtype: this.#dtypes[index]!, values });
    }
    this.#isGivenBack = true;
    this.#end();
  }

  dispose(): void {
    if (this.#isGivenBack) {
      return;
    }
    for (const leaf of this.#hasValues ? [] : this.#whole.leaves) {
      leaf.storage.release();
    }
    this.#end();
  }

  #end(): void {
    this.home?.close();
    this.flat.grad?.dispose();
    this.flat.grad = undefined;
    this.full.dispose();
    this.flat.dispose();
  }
}
