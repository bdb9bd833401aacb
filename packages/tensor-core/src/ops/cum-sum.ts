// Running sums along an axis.

import { isFloat } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { resolveAxis } from './checks.js';
import { type AxisOptions, linesOf } from './gather.js';

/**
 * The running sum along an axis, inclusive: [1, 2, 3] gives [1, 3, 6]. Floats are added in f32;
 * integers wrap around.
 */
export function cumSum(x: Tensor, options: AxisOptions = {}): Tensor {
  checkNames('cumSum', options, ['axis']);
  const axis = resolveAxis('cumSum', options.axis ?? -1, x.rank);
  const { device, dtype } = x;
  const lines = linesOf(x, axis);
  const summed = (from: Tensor, isReverse: boolean): Tensor => {
    const to = device.empty(x.shape, { dtype });
    if (to.size > 0) {
      device.run('cumSum', { x: from.view(), out: to.view(), ...lines, isReverse });
    }
    return to;
  };
  const out = summed(x, false);
  if (isFloat(dtype)) {
    device.record({
      name: 'cumSum',
      inputs: [x],
      outputs: [out],
      saved: [],
      backward: ([dy]) => [summed(dy!, true)],
    });
  }
  return out;
}
