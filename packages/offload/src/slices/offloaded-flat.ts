// The parameters of one layer: bytes in a store while they rest, and on the device around their
// use. Their flat gradient leaves for the store in backward, in f32 whatever dtype is computed in.
// See nn's Note [flat parameter].

import {
  type ByteStore,
  FlatGradient,
  type FlatLeaf,
  FlatParameter,
  flatLayout,
  type HostBuffers,
  restSize,
  type StoredFlat,
  type StoredModel,
  storeUseOf,
} from '@shardweave/nn/flat';
import { byteSize, type Device, type DType } from '@shardweave/tensor-core';

export interface OffloadedFlatOptions {
  readonly device: Device;
  readonly store: ByteStore;
  readonly resume: boolean | undefined;
  readonly model: StoredModel;
  readonly computeDType: DType;
  readonly hostBuffers: HostBuffers;
}

export class OffloadedFlat extends FlatParameter {
  declare readonly home: StoredFlat;
  /** The gradient during backward, until it leaves for the store. */
  readonly gradient: FlatGradient;

  constructor(name: string, parameters: readonly FlatLeaf[], options: OffloadedFlatOptions) {
    const { device, store, resume, model, computeDType, hostBuffers } = options;
    const leaves = parameters.map(({ tensor }) => tensor);
    const layout = flatLayout(leaves.map(restSize));
    const dtype = leaves[0]?.dtype ?? 'f32';
    super({
      name,
      device,
      parameters,
      layout,
      computeDType: dtype === 'f32' ? computeDType : dtype, // frozen 16-bit ones keep their dtype
      absentHint:
        'An offloaded parameter is there while its slice runs; stateDict of the model reads it.',
      rest: { use: storeUseOf(store), rests: 'all', resume: resume === true, model, name },
      hostBuffers: () => hostBuffers,
    });
    this.gradient = new FlatGradient({ device, layout, leaves, dtype: () => 'f32' });
    for (const leaf of leaves) {
      leaf.gradSink = this.gradient;
    }
  }

  /** The bytes of host buffers that a load takes. */
  get loadBytes(): number {
    return this.home.parameter.loadBytes(this.full.loadDType);
  }

  /**
   * The bytes of host buffers that a gradient takes on its way: itself, and the sum that it joins.
   */
  get flushBytes(): number {
    return 2 * this.flat.size * byteSize('f32');
  }

  /** Moves the values into the store and frees them on the device; see takeOver. */
  async moveToStore(): Promise<void> {
    await this.home.open(this.name);
    await this.takeOver();
  }

  /**
   * Queues the read-back of the gradients that have come and frees them; resolves when the store
   * has them.
   */
  flushGradient(options: { readonly isDry: boolean }): Promise<void> | undefined {
    const whole = this.gradient.take();
    const stored =
      whole === undefined || options.isDry ? undefined : this.home.gradient.addStorage(whole, 1);
    whole?.release();
    return stored;
  }

  override dispose(): void {
    this.gradient.reset();
    super.dispose();
  }
}
