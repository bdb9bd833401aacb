// Conversion between dtypes.

import type { DType } from '@shardweave/dtypes';
import { isFloat } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';

/**
 * x in another dtype, by the rules of the cast kernel (backend.ts). Returns x itself where nothing
 * changes, unless `copy`. Differentiable between floats.
 */
export function cast(x: Tensor, dtype: DType, options: { readonly copy?: boolean } = {}): Tensor {
  checkNames('cast', options, ['copy']);
  if (x.dtype === dtype && options.copy !== true) {
    return x;
  }
  const { device } = x;
  const out = device.empty(x.shape, { dtype });
  if (out.size > 0) {
    device.run('cast', { x: x.view(), out: out.view() });
  }
  if (isFloat(x.dtype) && isFloat(dtype)) {
    const from = x.dtype;
    device.record({
      name: 'cast',
      inputs: [x],
      outputs: [out],
      saved: [],
      backward: ([dy]) => [cast(dy!, from)],
    });
  }
  return out;
}
