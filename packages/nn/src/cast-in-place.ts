// Changes the dtype of a parameter or buffer under its identity.

import { type DType, isFloat, type Tensor } from '@shardweave/tensor-core';
import { castDeferred, recipeOf } from './flat/deferred-parameter.js';

/** Points a float leaf that owns its storage at a copy in `dtype`; integers stay as they are. */
export function castInPlace(tensor: Tensor, dtype: DType): void {
  if (!isFloat(tensor.dtype) || tensor.dtype === dtype) {
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
