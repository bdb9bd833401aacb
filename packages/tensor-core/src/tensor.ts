// A tensor: a shape over a run of a storage, and its place in the autograd graph. It is always
// dense and row-major, so a transpose copies; matmul alone reads its operands in either order.

import { byteSize, type DType, toF32Array } from '@shardweave/dtypes';
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
   * reads and writes `flat` in its place. Packing sets it. Default false.
   */
  readonly isPacked?: boolean;
}

/** Returns the number of elements of a shape, which is 1 for []. */
export function elementCountOf(shape: Shape): number {
  let count = 1;
  for (const dim of shape) {
    count *= dim;
  }
  return count;
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
  #storage: Storage;
  #offset: number;

  constructor(storage: Storage, shape: Shape, offset = 0, requiresGrad = false) {
    this.shape = shape;
    this.size = elementCountOf(shape);
    this.requiresGrad = requiresGrad;
    this.#storage = storage;
    this.#offset = offset;
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
    return this.#storage.device;
  }

  get dtype(): DType {
    return this.#storage.dtype;
  }

  get storage(): Storage {
    return this.#storage;
  }

  /** The index of the first element in the storage. */
  get offset(): number {
    return this.#offset;
  }

  get rank(): number {
    return this.shape.length;
  }

  /**
   * Points a leaf at other bytes. Sharding does so to move parameters into a flat storage, and
   * summonFullParams to show them in full precision. Neither storage changes its owner.
   * @throws {StateError} for a tensor made by an op.
   * @throws {ShapeError} where the storage is too short.
   */
  rebind(storage: Storage, offset: number): void {
    if (this.origin !== undefined) {
      throw new StateError('tensor.rebind: expected a leaf, got the result of an op.');
    }
    if (offset < 0 || offset + this.size > storage.elementCount) {
      throw new ShapeError(
        `tensor.rebind: expected room for shape [${this.shape.join(', ')}] at element ${offset}, got a storage of ${storage.elementCount} elements.`,
      );
    }
    this.#storage = storage;
    this.#offset = offset;
  }

  /** Returns the elements as kernels take them: a buffer, an offset, a size and a dtype. */
  view(): View {
    return this.#storage.view(this.#offset, this.size);
  }

  /** Returns a tensor of the same elements outside the graph, which shares the storage. */
  detach(): Tensor {
    const tensor = new Tensor(this.#storage, this.shape, this.#offset);
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
      this.#storage.release();
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
    const start = this.#offset * byteSize(this.dtype);
    const length = this.size * byteSize(this.dtype);
    if (length === 0) {
      return new Uint8Array(0);
    }
    const lead = start % 4;
    const whole = Math.ceil((lead + length) / 4) * 4;
    const bytes = await this.#storage.read(start - lead, whole);
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
