// The kernel of a custom op runs as its `plain` function in float64. Values are rounded once, where
// they are stored.

import type { PlainArray } from '../../kernel-calls/custom.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { type Open, valuesOf } from './elements.js';

export function custom(call: KernelCalls['custom'], open: Open): void {
  const { kernel, inputs, out, shapes, params } = call;
  const arrays: Record<string, PlainArray> = {};
  for (const [name, view] of Object.entries(inputs)) {
    arrays[name] = { shape: shapes[name]!, data: valuesOf(open(view)) };
  }
  const data = new Float64Array(out.size);
  kernel.plain(arrays, { shape: shapes.out!, data }, params);
  const elements = open(out);
  for (let i = 0; i < data.length; i++) {
    elements.set(i, data[i]!);
  }
}
