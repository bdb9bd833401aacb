// Cases of a custom kernel, which reads its inputs at other elements than its own.

import type { CustomKernel } from '../../kernel-calls/custom.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, SIZES } from '../kit/sizes.js';

/** out[i] = x[last - i] * scale + ids[i mod 2], where the last parameter is an integer. */
const KERNEL: CustomKernel = {
  name: 'reversed',
  params: { scale: 'f32', last: 'u32' },
  wgsl: `fn element(i: u32) -> f32 {
  return load_x(P.last - i) * P.scale + f32(load_ids(i & 1u));
}`,
  plain: ({ x, ids }, out, params) => {
    out.data.forEach((_, i) => {
      out.data[i] = x!.data[params.last! - i]! * params.scale! + ids!.data[i % 2]!;
    });
  },
};

export function customCases(): ConformanceCase[] {
  return FLOATS.flatMap((from) =>
    FLOATS.map((to) =>
      recordedCase(`custom ${from} to ${to}`, 'arithmetic', (calls) => {
        for (const size of SIZES) {
          calls.run('custom', {
            kernel: KERNEL,
            inputs: {
              x: calls.floats(size, from, { offset: 3 }),
              ids: calls.values([-1, 2], 'i32', { offset: 70 }),
            },
            out: calls.output(size, to, { offset: 2 }),
            shapes: { x: [size], ids: [2], out: [size] },
            params: { scale: 0.5, last: size - 1 },
          });
        }
      }),
    ),
  );
}
