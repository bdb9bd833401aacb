// Op cases of layerNorm and rmsNorm, and of both norms of a sum.

import {
  addLayerNorm,
  addRmsNorm,
  layerNorm,
  type NormedSum,
  rmsNorm,
} from '../../ops/row-norm.js';
import { cat } from '../../ops/shape.js';
import type { Tensor } from '../../tensor.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { FLOATS } from '../kit/sizes.js';
import { pairTwin } from '../twins/elementwise.js';
import { layerNormTwin, rmsNormTwin } from '../twins/rows.js';
import type { TwinArray } from '../twins/twin-array.js';

const EPS = 1e-3;

export function rowNormOpCases(): OpCase[] {
  return FLOATS.flatMap((dtype) => [
    ...layerNormCases(dtype),
    ...rmsNormCases(dtype),
    ...sumCases(dtype),
  ]);
}

function layerNormCases(dtype: FloatDType): OpCase[] {
  return [
    [false, false],
    [true, false],
    [false, true],
    [true, true],
  ].flatMap(([hasWeight, hasBias]) =>
    [[7, 65], ...(dtype === 'f32' ? [[2, 3, 7], [63]] : [])].map((shape) =>
      opCase(
        `layerNorm ${dtype} [${shape.join(', ')}]${hasWeight ? ' with weight' : ''}${hasBias ? ' with bias' : ''}`,
        {
          dtype,
          inputs: [
            { shape, values: { low: -1, high: 3 } },
            ...(hasWeight ? [{ shape: [shape.at(-1)!] }] : []),
            ...(hasBias ? [{ shape: [shape.at(-1)!] }] : []),
          ],
          op: ([x, ...rest]) =>
            layerNorm(x!, {
              ...(hasWeight ? { weight: rest[0]! } : {}),
              ...(hasBias ? { bias: rest.at(-1)! } : {}),
              eps: EPS,
            }),
          twin: ([x, ...rest]) =>
            layerNormTwin(x!, {
              weight: hasWeight ? rest[0] : undefined,
              bias: hasBias ? rest.at(-1) : undefined,
              eps: EPS,
            }),
          roundings: 2,
        },
      ),
    ),
  );
}

function rmsNormCases(dtype: FloatDType): OpCase[] {
  return [[7, 65], [2, 3, 7], [63], [0, 7]].flatMap((shape) =>
    ([undefined, 0, 1] as const).map((weightOffset) =>
      opCase(
        `rmsNorm ${dtype} [${shape.join(', ')}] ${weightOffset === undefined ? 'without weight' : `with ${weightOffset} + weight`}`,
        {
          dtype,
          inputs: [
            { shape, values: { low: -1, high: 3 } },
            ...(weightOffset === undefined ? [] : [{ shape: [shape.at(-1)!] }]),
          ],
          op: ([x, weight]) =>
            rmsNorm(
              x!,
              weight && weightOffset !== undefined
                ? { weight, weightOffset, eps: EPS }
                : { eps: EPS },
            ),
          twin: ([x, weight]) =>
            rmsNormTwin(x!, { weight, weightOffset: weightOffset ?? 0, eps: EPS }),
          roundings: 2,
        },
      ),
    ),
  );
}

/** Cases of both norms of a sum, and of their gradients. */
function sumCases(dtype: FloatDType): OpCase[] {
  return [
    ...(
      [
        [7, 65],
        [2, 3, 7],
      ] as const
    ).flatMap((shape) => [
      opCase(`addRmsNorm ${dtype} [${shape.join(', ')}]`, {
        dtype,
        inputs: [{ shape, values: { low: -1, high: 3 } }, { shape }, { shape: [shape.at(-1)!] }],
        op: ([x, residual, weight]) =>
          joined(x!, () => addRmsNorm(x!, { residual: residual!, weight: weight!, eps: EPS })),
        twin: ([x, residual, weight]) => {
          const sum = sumOf(x!, residual!);
          return joinedTwin(sum, rmsNormTwin(sum, { weight, eps: EPS }));
        },
        roundings: 8, // the norm is one of a rounded sum
      }),
      opCase(`addLayerNorm ${dtype} [${shape.join(', ')}]`, {
        dtype,
        inputs: [
          { shape, values: { low: -1, high: 3 } },
          { shape },
          { shape: [shape.at(-1)!] },
          { shape: [shape.at(-1)!] },
        ],
        op: ([x, residual, weight, bias]) =>
          joined(x!, () =>
            addLayerNorm(x!, { residual: residual!, weight: weight!, bias: bias!, eps: EPS }),
          ),
        twin: ([x, residual, weight, bias]) => {
          const sum = sumOf(x!, residual!);
          return joinedTwin(sum, layerNormTwin(sum, { weight, bias, eps: EPS }));
        },
        roundings: 8,
      }),
    ]),
    ...(['addRmsNorm', 'addLayerNorm'] as const).map((op) =>
      opCase(`${op} ${dtype} without a residual`, {
        dtype,
        inputs: [{ shape: [3, 7] }, { shape: [7] }],
        op: ([x, weight]) => {
          const norm = op === 'addRmsNorm' ? addRmsNorm : addLayerNorm;
          return joined(x!, () => norm(x!, { weight: weight!, eps: EPS }));
        },
        twin: ([x, weight]) => {
          const norm = op === 'addRmsNorm' ? rmsNormTwin : layerNormTwin;
          return joinedTwin(x!, norm(x!, { weight, eps: EPS }));
        },
        roundings: 8,
      }),
    ),
    ...(['sum', 'norm'] as const).map((used) =>
      opCase(`addRmsNorm ${dtype} of which only the ${used} is used`, {
        dtype,
        // The weight is no input where only the sum is used, since it would get no gradient.
        inputs: [
          { shape: [3, 7] },
          { shape: [3, 7] },
          ...(used === 'norm' ? [{ shape: [7] }] : []),
        ],
        op: ([x, residual, weight]) =>
          x!.device.scope(
            () =>
              addRmsNorm(x!, { residual: residual!, ...(weight && { weight }), eps: EPS })[used],
          ),
        twin: ([x, residual, weight]) => {
          const sum = sumOf(x!, residual!);
          return used === 'sum' ? sum : rmsNormTwin(sum, { weight, eps: EPS });
        },
        roundings: 8,
      }),
    ),
  ];
}

/** Joins both results, so that one backward pass gives both gradients. */
function joined(x: Tensor, make: () => NormedSum): Tensor {
  return x.device.scope(() => {
    const { sum, norm } = make();
    return cat([sum, norm], { axis: 0 });
  });
}

function joinedTwin(sum: TwinArray, norm: TwinArray): TwinArray {
  const [rows, ...rest] = sum.shape as [number, ...number[]];
  return { shape: [2 * rows, ...rest], data: Float64Array.from([...sum.data, ...norm.data]) };
}

function sumOf(x: TwinArray, residual: TwinArray): TwinArray {
  return pairTwin(x, residual, (a, b) => a + b);
}
