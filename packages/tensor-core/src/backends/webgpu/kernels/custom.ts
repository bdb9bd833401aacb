// A user's kernel: its WGSL between the accessors and the stores that elementwise kernels have.
// Inputs are bound whole, for it may read any of their elements.

import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { KernelContext } from '../context.js';
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
    // Two ops may have one name.
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
