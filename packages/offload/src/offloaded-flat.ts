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
  FlatGradient,
  flatLayout,
  type HostBuffers,
  recipeOf,
  StoredFlat,
  type StoredModel,
  setFlatHome,
  storeUseOf,
} from '@shardweave/nn/flat';
import { type Device, type DType, StateError, type Storage, Tensor } from '@shardweave/tensor-core';

export interface FlatParameter {
  /** Its path in the model. */
  readonly path: string;
  readonly tensor: Tensor;
}

export interface OffloadedFlatOptions {
  readonly device: Device;
  readonly store: ByteStore;
  readonly resume: boolean | undefined;
  readonly model: StoredModel;
  readonly computeDType: DType;
  readonly hostBuffers: HostBuffers;
}

/** Begun reading; undefined in a dry run. */
export type LoadTicket = { readonly bytes: Promise<Uint8Array> } | undefined;

export class OffloadedFlat {
  readonly name: string;
  readonly parameters: readonly FlatParameter[];
  /** [elementCount] f32; empty but while the optimizer steps it. */
  readonly flat: Tensor;
  readonly full: Storage;
  readonly home: StoredFlat;
  /** In backward, until it leaves for the store. */
  readonly gradient: FlatGradient;
  readonly #options: OffloadedFlatOptions;
  readonly #offsets: ReadonlyMap<Tensor, number>;
  /** Loads that were begun. Whoever takes one out of it, finished or abandoned, gives its buffer back. */
  readonly #loads = new Set<LoadTicket>();
  #isStored = false;

  constructor(name: string, parameters: readonly FlatParameter[], options: OffloadedFlatOptions) {
    const { device, store, resume, computeDType, hostBuffers, model } = options;
    this.name = name;
    this.parameters = parameters;
    this.#options = options;
    const leaves = parameters.map(({ tensor }) => tensor);
    const layout = flatLayout(leaves.map(({ size }) => size));
    this.#offsets = new Map(leaves.map((leaf, index) => [leaf, layout.offsets[index]!]));
    const { elementCount } = layout;
    this.flat = new Tensor(
      device.storage(elementCount, 'f32', 'parameter'),
      [elementCount],
      0,
      true,
    );
    this.flat.name = name;
    this.full = device.storage(elementCount, computeDType, 'parameter');
    this.full.absentHint =
      'An offloaded parameter is there while its slice runs; stateDict of @shardweave/offload reads it.';
    this.home = new StoredFlat({
      flat: this.flat,
      use: storeUseOf(store),
      rests: 'all',
      resume: resume === true,
      model,
      hostBuffers: () => hostBuffers,
      name,
    });
    setFlatHome(this.flat, this.home);
    this.gradient = new FlatGradient({ device, layout, leaves, dtype: () => 'f32' });
    for (const leaf of leaves) {
      leaf.piece = { flat: this.flat, start: this.#offsets.get(leaf)!, length: leaf.size };
      leaf.gradSink = this.gradient;
    }
  }

  /** Bytes of host buffers that a load takes. */
  get loadBytes(): number {
    return this.home.loadBytes(this.#options.computeDType);
  }

  /** Bytes of host buffers that a gradient takes on its way: itself, and the sum it joins. */
  get flushBytes(): number {
    return 2 * this.flat.size * byteSize('f32');
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
        const start = this.#offsets.get(tensor)! * 4;
        const recipe = recipeOf(tensor);
        if (recipe === undefined) {
          await this.home.writeParameter(await tensor.toBytes(), start);
        } else {
          recipe.write(this.home.filling(start, tensor.size), 0);
        }
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

  /** Queues the read-back of what has come and frees it; resolves when the store has it. */
  flushGradient(options: { readonly isDry: boolean }): Promise<void> | undefined {
    const whole = this.gradient.take();
    const stored =
      whole === undefined || options.isDry ? undefined : this.home.addStorage(whole, 1);
    whole?.release();
    return stored;
  }

  dispose(): void {
    this.abandonLoads();
    this.gradient.reset();
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
