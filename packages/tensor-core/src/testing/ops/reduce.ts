// Op cases of reductions over axes.

import { max, mean, min, type ReduceOptions, sum } from '../../ops/reduce.js';
import { type OpCase, type OpInput, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { FLOATS } from '../kit/sizes.js';
import { reduceTwin, type TwinReduction } from '../twins/reduce.js';

const OPS = { sum, mean, max, min } as const;
const KINDS = ['sum', 'mean', 'max', 'min'] as const;
type ShapeAndOptions = readonly [readonly number[], ReduceOptions?];
const REDUCTIONS: readonly ShapeAndOptions[] = [
  [[65]],
  [[]],
  [[3, 5, 7], { axis: 1 }],
  [[3, 5, 7], { axis: -1, keepDims: true }],
  [[3, 5, 7], { axis: [0, 2] }],
  [[3, 5, 7], { axis: [2, 0], keepDims: true }],
  [[2, 3, 2, 3], { axis: [1, 2] }],
  [[1, 63], { axis: 0 }],
];

export function reduceOpCases(): OpCase[] {
  return [
    ...KINDS.flatMap((kind) => [
      ...REDUCTIONS.map((reduction) => reduceCase(kind, 'f32', reduction)),
      ...FLOATS.slice(1).map((dtype) => reduceCase(kind, dtype, [[3, 5, 7], { axis: [0, 2] }])),
      ...FLOATS.slice(1).map((dtype) => reduceCase(kind, dtype, [[3, 7], { axis: 1 }])),
    ]),
    ...FLOATS.flatMap((dtype) => [tieCase('max', dtype), tieCase('min', dtype)]),
    // The partial sums exceed f16 and cancel, since a sum is rounded only once, at its end.
    reduceCase('sum', 'f16', [[2, 1, 2], { axis: [0, 2] }], [6e4, 6e4, -6e4, -5e4]),
    reduceCase('sum', 'f32', [[3, 0], { axis: 1 }]),
    reduceCase('max', 'f32', [[0, 3], { axis: 1 }]),
  ];
}

function reduceCase(
  kind: TwinReduction,
  dtype: FloatDType,
  [shape, options = {}]: ShapeAndOptions,
  values?: OpInput['values'],
): OpCase {
  const { axis, keepDims = false } = options;
  const listed = axis === undefined ? shape.map((_, i) => i) : [axis].flat();
  const axes = listed.map((a) => (a < 0 ? a + shape.length : a));
  const given = values === undefined ? '' : ' of chosen values';
  return opCase(
    `${kind} ${dtype} [${shape.join(', ')}] over [${listed.join(', ')}]${keepDims ? ' kept' : ''}${given}`,
    {
      dtype,
      inputs: [{ shape, ...(values === undefined ? {} : { values }) }],
      op: ([x]) => OPS[kind](x!, options),
      twin: ([x]) => reduceTwin(kind, x!, axes, keepDims),
    },
  );
}

/** Takes two equal extrema. The central difference of each is half, and so is its share. */
function tieCase(kind: 'max' | 'min', dtype: FloatDType): OpCase {
  const values = [1, 5, 5, -2, -2, 0, 5, 1, 5, -2, 3, -2];
  return reduceCase(kind, dtype, [[2, 6], { axis: 1 }], values);
}
