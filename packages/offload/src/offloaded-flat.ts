// The parameters of one layer: at rest bytes in a store, on the device a flat copy around their use
// and a flat gradient in backward.
//
// Note [offloaded flat]
//   original  the layer's parameter tensors; they point into `full` for good
//   flat      f32, one-dimensional: what the optimizer steps; on the device only while it does
//   full      the parameters in the dtype of computation, filled and freed under one identity, so
//             that what autograd saved in forward is valid again in backward
//   gradient  f32, freed when its read-back is queued; the store adds it to what is there

import { byteSize } from '@shardweave/dtypes';
import {
  type ByteStore,
  dropRecipe,
  type HostBuffers,
  recipeOf,
  StoredFlat,
  setFlatHome,
  storeUseOf,
} from '@shardweave/nn/flat';
import { type Device, type DType, StateError, type Storage, Tensor } from '@shardweave/tensor-core';

/** Views start at multiples of 256 bytes in 16 bits: the binding alignment of WebGPU. */
const ALIGN_ELEMENTS = 128;

export interface FlatParameter {
  /** Its path in the model. */
  readonly path: string;
  readonly tensor: Tensor;
}

export interface OffloadedFlatOptions {
  readonly device: Device;
  readonly store: ByteStore;
  readonly resume: boolean;
  readonly computeDType: DType;
  readonly hostBuffers: HostBuffers;
}

/** Begun reading; undefined in a dry run. */
export type LoadTicket = { readonly bytes: Promise<Uint8Array> } | undefined;

export class OffloadedFlat {
  readonly name: string;
  readonly parameters: readonly FlatParameter[];
  readonly elementCount: number;
  /** [elementCount] f32; empty but while the optimizer steps it. */
  readonly flat: Tensor;
  readonly full: Storage;
  readonly home: StoredFlat;
  readonly #options: OffloadedFlatOptions;
  readonly #offsets = new Map<Tensor, number>();
  readonly #contributed = new Set<Tensor>();
  /** Loads that were begun. Whoever takes one out of it, finished or abandoned, gives its buffer back. */
  readonly #loads = new Set<LoadTicket>();
  #gradient: Storage | undefined;
  #isStored = false;

  constructor(name: string, parameters: readonly FlatParameter[], options: OffloadedFlatOptions) {
    const { device, store, resume, computeDType, hostBuffers } = options;
    this.name = name;
    this.parameters = parameters;
    this.#options = options;
    let end = 0;
    for (const { tensor } of parameters) {
      this.#offsets.set(tensor, end);
      end += Math.ceil(tensor.size / ALIGN_ELEMENTS) * ALIGN_ELEMENTS;
    }
    this.elementCount = end;
    this.flat = new Tensor(device.storage(end, 'f32', 'parameter'), [end], 0, true);
    this.flat.name = name;
    this.full = device.storage(end, computeDType, 'parameter');
    this.full.absentHint =
      'An offloaded parameter is there while its slice runs; stateDict of @shardweave/offload reads it.';
    this.home = new StoredFlat({
      flat: this.flat,
      use: storeUseOf(store),
      rests: 'all',
      resume,
      hostBuffers: () => hostBuffers,
      name,
    });
    setFlatHome(this.flat, this.home);
    for (const { tensor } of parameters) {
      tensor.piece = { flat: this.flat, start: this.#offsets.get(tensor)!, length: tensor.size };
      tensor.gradSink = {
        target: (leaf) => this.#target(leaf),
        accept: (leaf, gradient) => this.#accept(leaf, gradient),
        final: () => {},
        clear: () => this.resetGradient(),
      };
    }
  }

  /** Bytes of host buffers that a load takes. */
  get loadBytes(): number {
    return this.home.loadBytes(this.#options.computeDType);
  }

  /** Bytes of host buffers that a gradient takes on its way: itself, and the sum it joins. */
  get flushBytes(): number {
    return 2 * this.elementCount * byteSize('f32');
  }

  // ---- parameters ------------------------------------------------------------------------------

  /**
   * Moves the values into the store, parameter by parameter, and frees them on the device. Once;
   * where it rejects they are on the device as before.
   */
  async moveToStore(): Promise<void> {
    if (this.#isStored) {
      return;
    }
    await this.home.open(this.name);
    if (!this.home.isResuming) {
      this.home.beginFilling();
      for (const { tensor } of this.parameters) {
        await this.home.writeParameter(await valuesOf(tensor), this.#offsets.get(tensor)! * 4);
      }
      await this.home.endFilling();
    }
    for (const { tensor } of this.parameters) {
      const own = tensor.storage;
      dropRecipe(tensor);
      tensor.rebind(this.full, this.#offsets.get(tensor)!);
      own.release();
    }
    this.#isStored = true;
  }

  get isPresent(): boolean {
    return this.full.isFilled;
  }

  /** Begins to read; never waits. */
  startLoad(): LoadTicket {
    const bytes = this.home.readForLoad(this.#options.computeDType);
    bytes.catch(() => undefined); // seen by finishLoad
    const ticket = { bytes };
    this.#loads.add(ticket);
    return ticket;
  }

  async finishLoad(ticket: LoadTicket): Promise<void> {
    if (ticket === undefined) {
      this.full.fill();
      return;
    }
    const bytes = await ticket.bytes;
    if (!this.#loads.delete(ticket)) {
      throw new StateError(
        `offload: expected the model to stay as it was while '${this.name}' was read, but it was disposed or failed meanwhile. Await every call before the next one.`,
      );
    }
    try {
      this.full.fill();
      this.full.write(bytes);
    } finally {
      this.#options.hostBuffers.give(bytes);
    }
  }

  /** Nobody will finish the loads that were begun. */
  abandonLoads(): void {
    const { hostBuffers } = this.#options;
    for (const load of this.#loads) {
      load?.bytes.then(
        (bytes) => hostBuffers.give(bytes),
        () => undefined,
      );
    }
    this.#loads.clear();
  }

  drop(): void {
    this.full.free();
  }

  /** A parameter's f32 values at rest. */
  async read({ tensor }: FlatParameter): Promise<Uint8Array> {
    return this.home.readParameter(this.#offsets.get(tensor)! * 4, tensor.size * 4);
  }

  /** Replaces a parameter's values at rest: f32 bytes. */
  async write({ tensor }: FlatParameter, bytes: Uint8Array): Promise<void> {
    await this.home.writeParameter(bytes, this.#offsets.get(tensor)! * 4);
  }

  // ---- gradients -------------------------------------------------------------------------------

  /** Where an op may write a first contribution itself; 16-bit ones are converted. */
  #target(leaf: Tensor): Tensor | undefined {
    if (leaf.dtype !== 'f32' || this.#contributed.has(leaf)) {
      return undefined;
    }
    this.#contributed.add(leaf);
    return new Tensor(this.#wholeGradient(), leaf.shape, this.#offsets.get(leaf)!);
  }

  #accept(leaf: Tensor, gradient: Tensor): void {
    const whole = this.#wholeGradient();
    if (gradient.storage === whole) {
      return;
    }
    const { device } = this.#options;
    const out = whole.view(this.#offsets.get(leaf)!, leaf.size);
    const x = gradient.view();
    if (this.#contributed.has(leaf)) {
      const spec = { shape: [leaf.size], aStrides: [1], bStrides: [1] };
      device.backend.run('binary', { kind: 'add', a: out, b: x, out, ...spec });
    } else {
      device.backend.run('cast', { x, out });
      this.#contributed.add(leaf);
    }
  }

  #wholeGradient(): Storage {
    if (this.#gradient !== undefined) {
      return this.#gradient;
    }
    const { device } = this.#options;
    const whole = device.storage(this.elementCount, 'f32', 'gradient');
    whole.fill();
    device.backend.run('fill', { out: whole.view(), value: 0 }); // pads, unused ones
    this.#gradient = whole;
    return whole;
  }

  /** Queues the read-back of what has come and frees it; resolves when the store has it. */
  flushGradient(options: { readonly isDry: boolean }): Promise<void> | undefined {
    const gradient = this.#gradient;
    if (gradient === undefined) {
      return undefined;
    }
    const stored = options.isDry ? undefined : this.home.addStorage(gradient, 1);
    this.resetGradient();
    return stored;
  }

  /** Drops what the store doesn't have yet. */
  resetGradient(): void {
    this.#gradient?.release();
    this.#gradient = undefined;
    this.#contributed.clear();
  }

  dispose(): void {
    this.abandonLoads();
    this.resetGradient();
    this.home.close();
    if (!this.#isStored) {
      for (const { tensor } of this.parameters) {
        tensor.storage.release();
      }
    }
    this.full.release();
    this.flat.dispose();
  }
}

/** f32 bytes of a parameter that is on the device, or was never made. */
async function valuesOf(tensor: Tensor): Promise<Uint8Array> {
  const recipe = recipeOf(tensor);
  if (recipe === undefined) {
    return tensor.toBytes();
  }
  const values = new Float32Array(tensor.size);
  recipe.write(values, 0);
  return new Uint8Array(values.buffer);
}

/** Bytes that a step of the optimizer has on the device: parameter, gradient and `numStates` tensors. */
export function stepBytes(elementCount: number, numStates: number): number[] {
  return Array(2 + numStates).fill(elementCount * byteSize('f32')) as number[];
}
