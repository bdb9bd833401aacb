// Op cases of gated linear units.

import { geGlu, swiGlu } from '../../ops/gated.js';
import type { Tensor } from '../../tensor.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import { FLOATS } from '../kit/sizes.js';
import { geluErf, geluTanh, siluOf } from '../twins/elementwise.js';
import { gateTwin } from '../twins/gated.js';

const GATES = {
  swiGlu: [(x: Tensor, up?: Tensor) => swiGlu(x, up && { up }), siluOf],
  geGlu: [(x: Tensor, up?: Tensor) => geGlu(x, up && { up }), geluErf],
  'geGlu tanh': [
    (x: Tensor, up?: Tensor) => geGlu(x, { ...(up && { up }), approximate: 'tanh' }),
    geluTanh,
  ],
} as const;

export function gatedOpCases(): OpCase[] {
  return Object.entries(GATES).flatMap(([name, [op, f]]) =>
    FLOATS.flatMap((dtype) => [
      ...[[3, 7], [65], [2, 2, 3]].map((shape) =>
        opCase(`${name} of two ${dtype} [${shape.join(', ')}]`, {
          dtype,
          inputs: [{ shape, values: { low: -3, high: 3 } }, { shape }],
          op: ([x, up]) => op(x!, up!),
          twin: ([x, up]) => gateTwin(x!, { f, up }),
        }),
      ),
      ...[[3, 14], [130], [2, 2, 6], [2, 0]].map((shape) =>
        opCase(`${name} of the halves of ${dtype} [${shape.join(', ')}]`, {
          dtype,
          inputs: [{ shape, values: { low: -3, high: 3 } }],
          op: ([x]) => op(x!),
          twin: ([x]) => gateTwin(x!, { f, up: undefined }),
        }),
      ),
    ]),
  );
}
