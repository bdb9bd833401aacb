// Where the gradient of a shard rests between its reduction and the optimizer's step.

import { type DType, type Storage, Tensor } from '@shardweave/tensor-core';

/** The receiver of what a unit's reductions give. */
export interface GradientHome {
  /**
   * Adds reduced * scale to the gradient, or makes it the gradient where there is none. `reduced`
   * lies on the device. The caller gives up its hold afterwards and never uses it again, so it may
   * itself become the gradient.
   */
  addStorage(reduced: Storage, scale: number): void | Promise<void>;
  /** Does the same with host bytes in `dtype`, which belong to the caller again when it settles. */
  addBytes(reduced: Uint8Array, dtype: DType, scale: number): void | Promise<void>;
}

/** Keeps the gradient on the device, as `grad` of the flat shard. */
export class DeviceGradientHome implements GradientHome {
  readonly #flat: Tensor;

  /** @param flat [shardLength] */
  constructor(flat: Tensor) {
    this.#flat = flat;
  }

  addStorage(reduced: Storage, scale: number): void {
    const flat = this.#flat;
    const storage = scale === 1 && reduced.dtype === 'f32' ? reduced : this.#scaled(reduced, scale);
    const gradient = new Tensor(storage, [flat.size]);
    if (flat.grad !== undefined) {
      flat.device.addInPlace(flat.grad, gradient);
    } else {
      storage.retain();
      storage.tag = 'gradient';
      flat.grad = gradient;
    }
    if (storage !== reduced) {
      storage.release();
    }
  }

  #scaled(reduced: Storage, scale: number): Storage {
    const { device, size } = this.#flat;
    const scaled = device.storage(size, 'f32', 'gradient');
    scaled.fill();
    device.backend.run('affine', { x: reduced.view(), out: scaled.view(), scale, shift: 0 });
    return scaled;
  }

  addBytes(reduced: Uint8Array, dtype: DType, scale: number): void {
    const { device, size } = this.#flat;
    const staging = device.storage(size, dtype, 'staging');
    staging.fill();
    staging.write(reduced);
    this.addStorage(staging, scale);
    staging.release();
  }
}
