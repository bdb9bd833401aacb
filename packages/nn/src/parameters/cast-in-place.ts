// Changes the dtype of a parameter or buffer while the tensor stays the same object.

import { type DType, isFloat, type Tensor } from '@shardweave/tensor-core';
import { castDeferred, recipeOf } from './deferred-parameter.js';
import { decodeTo } from './encoded-parameter.js';

/**
 * Replaces the storage of a float leaf by a copy in `dtype`. The leaf must own its storage.
 * Integers stay as they are, and so do blocks, which are then decoded to that dtype.
 */
export function castInPlace(tensor: Tensor, dtype: DType): void {
  if (!isFloat(tensor.dtype) || tensor.dtype === dtype) {
    return;
  }
  if (tensor.blocks !== undefined) {
    decodeTo(tensor, dtype);
    return;
  }
  if (recipeOf(tensor) !== undefined) {
    castDeferred(tensor, dtype);
    return;
  }
  const { device, storage: before } = tensor;
  const storage = device.storage(tensor.size, dtype, before.tag);
  storage.fill();
  if (tensor.size > 0) {
    device.backend.run('cast', { x: tensor.view(), out: storage.view() });
  }
  tensor.rebind(storage, 0);
  before.release();
}
