// Conversion of tensors between dtypes.

import type { DType } from '@shardweave/dtypes';
import { isFloat } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import { DTypeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import { decoded } from './blocks.js';

/**
 * x converted to another dtype, by the rules of the kernel `cast` (CastCalls). Where x has
 * that dtype already, the result is x itself, or with `copy: true` a copy. Gradients flow only
 * between float dtypes; a conversion from or to integers ends the graph. Numbers in blocks are
 * decoded, to a float dtype, always into a tensor of their own.
 * @throws {DTypeError} for blocks and an integer dtype
 */
export function cast(x: Tensor, dtype: DType, options: { readonly copy?: boolean } = {}): Tensor {
  checkNames('cast', options, ['copy']);
  if (x.blocks !== undefined) {
    if (!isFloat(dtype)) {
      throw new DTypeError(
        `cast: expected a float dtype for numbers in ${x.blocks.type} blocks, got ${dtype}. Cast them twice.`,
      );
    }
    return decoded(x, dtype);
  }
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
