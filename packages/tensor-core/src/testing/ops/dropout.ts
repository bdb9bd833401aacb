// Op cases of dropout. Masks must equal those of a second generator, and must not depend on how
// rows are cut.

import type { Device } from '../../device.js';
import { causalSelfAttention } from '../../ops/attention.js';
import { dropout } from '../../ops/dropout.js';
import type { Tensor } from '../../tensor.js';
import { ConformanceError } from '../kit/conformance-error.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import { FLOATS } from '../kit/sizes.js';
import { dropoutTwin } from '../twins/dropout.js';

const NUM_ROWS = 8;
/** The rows at which 8 rows are cut: once into two uneven parts, and once into three. */
const CUTS = [[3], [1, 6]] as const;

export function dropoutOpCases(): OpCase[] {
  return [
    ...FLOATS.flatMap((dtype) =>
      [0.1, 0.5, 0.75].map((p) =>
        opCase(`dropout ${dtype} ${p}`, {
          dtype,
          inputs: [{ shape: [7, 9] }],
          op: ([x]) => dropout(x!, p),
          twin: ([x], key) => dropoutTwin(x!, { p, ...key, counterOffset: 0 }),
        }),
      ),
    ),
    opCase('dropout 0 passes through', {
      dtype: 'f32',
      inputs: [{ shape: [7] }],
      op: ([x]) => dropout(x!, 0),
      twin: ([x]) => x!,
    }),
    ...FLOATS.map((dtype) =>
      cutCase(`dropout ${dtype} is equal however rows are cut`, (device, rows) =>
        dropout(device.full([rows, 3, 7], 1, { dtype }), 0.5),
      ),
    ),
    cutCase('attention dropout is equal however rows are cut', (device, rows) =>
      causalSelfAttention(device.full([rows, 5, 12], 1), { numHeads: 2, dropout: 0.5 }),
    ),
  ];
}

/** Compares the bits of `forward` on all rows with those on parts that name their first row. */
function cutCase(name: string, forward: (device: Device, rows: number) => Tensor): OpCase {
  return {
    name,
    async run(device) {
      const state = device.random.state();
      const part = async (first: number, end: number): Promise<number[]> => {
        device.random.begin({ step: 5, rowOffset: first });
        return device.noGrad(() =>
          device.scope(async () => [...(await forward(device, end - first).toArray())]),
        );
      };
      const whole = await part(0, NUM_ROWS);
      if (new Set(whole).size < 2) {
        throw new ConformanceError(name, 'nothing was dropped');
      }
      for (const cut of CUTS) {
        const bounds = [0, ...cut, NUM_ROWS];
        const parts: number[] = [];
        for (let i = 1; i < bounds.length; i++) {
          parts.push(...(await part(bounds[i - 1]!, bounds[i]!)));
        }
        const wrong = whole.findIndex((value, i) => value !== parts[i]);
        if (wrong >= 0) {
          throw new ConformanceError(
            name,
            `cut at rows ${cut.join(', ')}: element ${wrong} expected ${whole[wrong]}, got ${parts[wrong]}`,
          );
        }
      }
      device.random.restore(state);
    },
  };
}
