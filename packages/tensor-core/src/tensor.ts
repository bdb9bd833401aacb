// A tensor: a shape over a run of a storage, and its place in the autograd graph. It is always
// dense and row-major, so a transpose copies; matmul alone reads its operands in either order.

import { byteSize, type DType, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { type BlockType, blocksByteLength, decodeBlocks } from '@shardweave/dtypes/blocks';
import type { NodeOutput } from './autograd/node.js';
import type { GradSink } from './autograd/pass.js';
import type { Device } from './device.js';
import { ShapeError, StateError } from './errors.js';
import type { Storage } from './memory/storage.js';
import type { View } from './view.js';

/**
 * Lengths of a tensor's axes, outermost first: [2, 3] is two rows of three, and [] a single number.
 */
export type Shape = readonly number[];

/**
 * The part of a parameter that this rank's optimizer steps: elements [start, start + length) of
 * `flat`, a one-dimensional f32 leaf whose `grad` holds the matching gradients. The length may be
 * 0.
 */
export interface ShardPiece {
  readonly flat: Tensor;
  readonly start: number;
  readonly length: number;
  /** The parameter's element that lies at `start`. The default is 0. */
  readonly first?: number;
  /**
   * How many devices share the whole flat parameter, of which `flat` is this device's part. Default
   * 1: no other device has any of it. Above 1 the parameter counts as sharded, even where all of
   * its own elements happen to be here.
   */
  readonly numShards?: number;
  /**
   * Whether all of `flat` rests here between uses, so that whoever saves or loads the parameter
   * reads and writes `flat` in its place. Packing sets it, and whoever has it whole. Default false.
   */
  readonly isPacked?: boolean;
}

/** What ggml's blocks have to be decoded. */
export interface BlockForm {
  readonly type: BlockType;
  /** The dtype of the numbers that ops decode. */
  readonly dtype: 'f32' | 'f16' | 'bf16';
}

/** How the numbers of a frozen matrix rest: in ggml's blocks, row by row. */
export interface Blocks extends BlockForm {
  /** The words in which the blocks lie, a u32 tensor over the same storage. */
  readonly words: Tensor;
}

/** Where the bytes of a tensor lie. */
interface Place {
  readonly storage: Storage;
  /** The first element, or the first word of blocks. */
  readonly offset: number;
  readonly blocks: Blocks | undefined;
}

/** Returns the number of elements of a shape, which is 1 for []. */
export function elementCountOf(shape: Shape): number {
  let count = 1;
  for (const dim of shape) {
    count *= dim;
  }
  return count;
}

/** The elements of a storage that a tensor takes: its own, or the words of its blocks. */
function extentOf(shape: Shape, blocks: BlockForm | undefined): number {
  if (blocks === undefined) {
    return elementCountOf(shape);
  }
  const [rows, width = 0] = [elementCountOf(shape.slice(0, -1)), shape.at(-1)];
  return Math.ceil((rows * blocksByteLength(blocks.type, width)) / 4);
}

/** @throws {StateError} for numbers in blocks. Ops that look at no view call it. */
export function requireNumbers({ name, shape, blocks }: Tensor): void {
  if (blocks !== undefined) {
    throw new StateError(
      `${name === '' ? 'tensor' : name}: expected numbers, got [${shape.join(', ')}] in ${blocks.type} blocks. linear, embedding and linearCrossEntropy read blocks, as a weight or a table; give other ops cast(x, dtype), which decodes all of them.`,
    );
  }
}

const BRAND = Symbol.for('@shardweave/tensor-core/Tensor');

/** Whether `value` is a tensor, of this copy of the package or of another. */
export function isTensor(value: unknown): value is Tensor {
  return typeof value === 'object' && value !== null && BRAND in value;
}

/**
 * Made by ops and by Device.tensor, zeros and empty. A tensor made inside a scope is freed at the
 * scope's end unless it is returned from it or saved for backward.
 */
export class Tensor {
  readonly [BRAND] = true;
  readonly shape: Shape;
  /** The number of elements. */
  readonly size: number;
  /** Whether backward computes `grad`, for a leaf, or reaches the tensor, for a result. */
  requiresGrad: boolean;
  /** A name for people and errors, which for a parameter is its path. */
  name = '';
  /** What takes a leaf's gradients instead of `grad`. Sharding and bucketing set it. */
  gradSink: GradSink | undefined = undefined;
  /** Where the optimizer finds a sharded or packed parameter. Others are stepped themselves. */
  piece: ShardPiece | undefined = undefined;
  /**
   * Where a flat rests between steps if not on the device. Its type is unknown in this package:
   * setFlatHome and flatHomeOf of nn write and read it.
   */
  home: unknown = undefined;
  /**
   * The graph node that made it, and which of its outputs it is; none for a leaf.
   * @internal
   */
  origin: NodeOutput | undefined = undefined;
  /**
   * Whether this tensor holds its storage itself, so that no scope frees it; dispose ends that.
   * Only `keep` and `markKept` set it.
   */
  isKept = false;
  #grad: Tensor | undefined;
  #place: Place;

  constructor(storage: Storage, shape: Shape, offset = 0, requiresGrad = false) {
    this.shape = shape;
    this.size = elementCountOf(shape);
    this.requiresGrad = requiresGrad;
    this.#place = { storage, offset, blocks: undefined };
  }

  /**
   * A leaf's accumulated gradient. The gradient of a packed or sharded parameter is instead a part
   * of its flat's; setting undefined here drops it there, too.
   */
  get grad(): Tensor | undefined {
    return this.#grad;
  }

  set grad(gradient: Tensor | undefined) {
    this.#grad = gradient;
    if (gradient === undefined) {
      this.gradSink?.clear?.([this]);
    }
  }

  get device(): Device {
    return this.#place.storage.device;
  }

  /** The dtype of its numbers, also where those rest in blocks. */
  get dtype(): DType {
    return this.#place.blocks?.dtype ?? this.#place.storage.dtype;
  }

  /**
   * How its numbers rest where they rest in blocks. `linear`, `embedding` and `linearCrossEntropy`
   * read such a matrix a panel at a time, and `cast` decodes all of it; other ops refuse it.
   */
  get blocks(): Blocks | undefined {
    return this.#place.blocks;
  }

  get storage(): Storage {
    return this.#place.storage;
  }

  /** The index of the first element in the storage, or of the first word of blocks. */
  get offset(): number {
    return this.#place.offset;
  }

  get rank(): number {
    return this.shape.length;
  }

  /**
   * Points a leaf at other bytes. Sharding does so to move parameters into a flat storage, and
   * summonFullParams to show them in full precision. Neither storage changes its owner.
   * @param blocks how the numbers rest there. Default: as before
   * @throws {StateError} for a tensor made by an op.
   * @throws {ShapeError} where the storage is too short.
   * @throws {RangeError} for rows that are not whole blocks.
   */
  rebind(
    storage: Storage,
    offset: number,
    blocks: BlockForm | undefined = this.#place.blocks,
  ): void {
    if (this.origin !== undefined) {
      throw new StateError('tensor.rebind: expected a leaf, got the result of an op.');
    }
    const extent = extentOf(this.shape, blocks);
    if (offset < 0 || offset + extent > storage.elementCount) {
      throw new ShapeError(
        `tensor.rebind: expected room for shape [${this.shape.join(', ')}] at element ${offset}, got a storage of ${storage.elementCount} elements.`,
      );
    }
    const words = () => new Tensor(storage, [extent], offset);
    this.#place = { storage, offset, blocks: blocks && { ...blocks, words: words() } };
  }

  /**
   * Returns the elements as kernels take them: a buffer, an offset, a size and a dtype.
   * @throws {StateError} for numbers in blocks.
   */
  view(): View {
    requireNumbers(this);
    return this.#place.storage.view(this.#place.offset, this.size);
  }

  /** Returns a tensor of the same elements outside the graph, which shares the storage. */
  detach(): Tensor {
    const tensor = new Tensor(this.#place.storage, this.shape, this.#place.offset);
    tensor.#place = this.#place;
    this.device.scopes.track(tensor);
    return tensor;
  }

  /**
   * Makes a hold of the storage that already exists this tensor's own. Code that hands tensors from
   * one owner to another uses it; `keep` takes a new hold.
   */
  markKept(): this {
    this.isKept = true;
    return this;
  }

  /**
   * Lets the tensor outlive its scope: it lives until dispose. Each call takes one more hold of the
   * storage and needs one more dispose. Returns the tensor itself.
   */
  keep(): this {
    this.device.scopes.untrack(this);
    return this.markKept();
  }

  /**
   * Gives up a kept tensor's hold of its storage. For a tensor that a scope holds it ends the
   * scope's hold, so the memory is free before the scope ends.
   */
  dispose(): void {
    if (this.isKept || !this.device.scopes.drop(this)) {
      this.#place.storage.release();
    }
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /**
   * Reads the elements back: f32, f16 and bf16 as Float32Array, i32 and u32 as themselves. Waits
   * for the device.
   */
  async toArray(): Promise<Float32Array | Int32Array | Uint32Array> {
    const bytes = await this.toBytes();
    if (this.dtype === 'f32') {
      return new Float32Array(bytes.buffer, bytes.byteOffset, this.size);
    }
    if (this.dtype === 'i32') {
      return new Int32Array(bytes.buffer, bytes.byteOffset, this.size);
    }
    if (this.dtype === 'u32') {
      return new Uint32Array(bytes.buffer, bytes.byteOffset, this.size);
    }
    return toF32Array(bytes, this.dtype);
  }

  /** Reads the raw elements back, little endian, exactly size * bytes-per-element long. */
  async toBytes(): Promise<Uint8Array> {
    if (this.#place.blocks !== undefined) {
      const numbers = new Float32Array(this.size);
      decodeBlocks(this.#place.blocks.type, await this.#place.blocks.words.toBytes(), numbers);
      return fromF32Array(numbers, this.#place.blocks.dtype);
    }
    const start = this.#place.offset * byteSize(this.dtype);
    const length = this.size * byteSize(this.dtype);
    if (length === 0) {
      return new Uint8Array(0);
    }
    const lead = start % 4;
    const whole = Math.ceil((lead + length) / 4) * 4;
    const bytes = await this.#place.storage.read(start - lead, whole);
    return lead === 0 ? bytes.subarray(0, length) : bytes.slice(lead, lead + length);
  }

  /**
   * The value of a one-element tensor. Waits for the device.
   * @throws {ShapeError} when it has more or fewer elements.
   */
  async item(): Promise<number> {
    if (this.size !== 1) {
      throw new ShapeError(
        `tensor.item: expected one element, got shape [${this.shape.join(', ')}].`,
      );
    }
    return (await this.toArray())[0]!;
  }

  /** Runs backward from this tensor, as Device.backward(this, options) does. */
  backward(options?: { gradient?: Tensor; retainGraph?: boolean }): Promise<void> {
    return this.device.backward(this, options);
  }
}
