// The kernel of a custom op puts the user's WGSL between the accessors and the stores of
// elementwise kernels. Its inputs are bound whole, because it may read any of their elements.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { KernelContext } from '../../queue/context.js';
import { map } from './elementwise.js';

export function custom(ctx: KernelContext, call: KernelCalls['custom']): void {
  const { kernel, inputs, out } = call;
  const params: Record<string, number> = {};
  const integers: Record<string, number> = {};
  for (const [name, type] of Object.entries(kernel.params)) {
    (type === 'f32' ? params : integers)[name] = call.params[name]!;
  }
  for (const [name, { size }] of Object.entries(inputs)) {
    integers[`${name}_size`] = size;
  }
  map(ctx, {
    name: `custom ${kernel.name}`,
    // The text is part of the key, because two ops may have the same name.
    keyText: kernel.wgsl,
    inputs,
    out,
    params,
    integers,
    isWhole: true,
    helpers: kernel.wgsl,
    value: 'return element(i);',
  });
}
