// The sum of squares that gradient clipping needs, as a reduction over the whole view.

import type { KernelCalls } from '../../../backend.js';
import { type KernelContext, sliceView } from '../context.js';
import { reduceInto } from './reduce.js';

export function squaredNorm(ctx: KernelContext, call: KernelCalls['squaredNorm']): void {
  const { x, out, accumulate } = call;
  ctx.eachWindow([x], x.size, (start, length) => {
    reduceInto(ctx, {
      kind: 'square',
      x: sliceView(x, start, length),
      out,
      outer: 1,
      dim: length,
      inner: 1,
      accumulate: accumulate || start > 0,
    });
  });
}
