// Op cases of rotary position embedding. The twin computes frequencies from their definition.

import { rotaryEmbedding, rotaryFrequencies } from '../../ops/rotary.js';
import type { Tensor } from '../../tensor.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import { FLOATS } from '../kit/sizes.js';
import { rotaryTwin } from '../twins/rotary.js';

/** Far positions, at which an f32 product with a frequency would be off by a hundredth. */
const FAR = [131_071, 5, 1_000_003, 0, 77, 8192];

export function rotaryOpCases(): OpCase[] {
  return FLOATS.flatMap((dtype) => [
    opCase(`rotaryEmbedding ${dtype} of a range`, {
      dtype,
      inputs: [{ shape: [2, 3, 2, 6] }],
      op: ([x]) => turned(x!, { offset: 5 }),
      twin: ([x]) =>
        rotaryTwin(x!, {
          frequencies: plainFrequencies(6),
          positionOf: (token) => 5 + token.at(-1)!,
          numRotated: 2,
        }),
    }),
    opCase(`rotaryEmbedding ${dtype} of positions for each token, values behind`, {
      dtype,
      inputs: [{ shape: [2, 3, 4, 10] }, { shape: [2, 3], dtype: 'i32', values: FAR }],
      op: ([x, positions]) => turned(x!, { positions: positions!, numRotated: 3 }),
      twin: ([x]) =>
        rotaryTwin(x!, {
          frequencies: plainFrequencies(10),
          positionOf: ([b, t]) => FAR[b! * 3 + t!]!,
          numRotated: 3,
        }),
    }),
    opCase(`rotaryEmbedding ${dtype} of positions for each place`, {
      dtype,
      inputs: [{ shape: [2, 3, 1, 2] }, { shape: [3], dtype: 'u32', values: [4, 0, 9] }],
      op: ([x, positions]) => turned(x!, { positions: positions! }),
      twin: ([x]) =>
        rotaryTwin(x!, {
          frequencies: [1],
          positionOf: (token) => [4, 0, 9][token.at(-1)!]!,
          numRotated: 1,
        }),
    }),
    opCase(`rotaryEmbedding ${dtype} of no tokens`, {
      dtype,
      inputs: [{ shape: [2, 0, 2, 6] }],
      op: ([x]) => turned(x!, {}),
      twin: ([x]) => x!,
    }),
  ]);
}

function plainFrequencies(headDim: number): number[] {
  return Array.from({ length: headDim / 2 }, (_, j) => 10_000 ** ((-2 * j) / headDim));
}

function turned(
  x: Tensor,
  options: { readonly positions?: Tensor; readonly offset?: number; readonly numRotated?: number },
): Tensor {
  const { device } = x;
  return device.scope(() => {
    const frequencies = rotaryFrequencies(device, { headDim: x.shape.at(-1)! });
    return rotaryEmbedding(x, { frequencies, ...options });
  });
}
