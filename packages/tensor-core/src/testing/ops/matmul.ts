// Op cases of matrix products and linear maps.

import type { Activation } from '../../kernel-calls/matmul.js';
import { add, gelu, neg } from '../../ops/elementwise.js';
import { linear, matmul } from '../../ops/matmul.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { FLOATS } from '../kit/sizes.js';
import { geluErf, geluTanh, mapTwin, pairTwin, siluOf } from '../twins/elementwise.js';
import { matmulTwin } from '../twins/matmul.js';
import type { TwinArray } from '../twins/twin-array.js';

const ACTIVATION_TWINS: Readonly<Record<Activation, (x: number) => number>> = {
  geluTanh,
  silu: siluOf,
  gelu: geluErf,
  relu: (x) => Math.max(0, x),
};
const TRANSPOSES = [
  [false, false],
  [false, true],
  [true, false],
  [true, true],
] as const;

/** Names of cases, and the batch dimensions of a and of b. */
const BATCHES: readonly (readonly [string, readonly number[], readonly number[]])[] = [
  ['batched', [3], [3]],
  ['one matrix for all of a', [2, 3], []],
  ['one matrix for all of b', [], [3]],
  ['broadcast both ways', [2, 1], [1, 3]],
  ['broadcast along one', [2, 3], [2, 1]],
];

export function matmulOpCases(): OpCase[] {
  return [
    ...TRANSPOSES.flatMap((transposes) => [
      productCase('f32', [[], []], [7, 5, 3], transposes),
      productCase('f32', [[], []], [1, 65, 63], transposes),
      productCase('f16', [[], []], [7, 5, 9], transposes),
      productCase('bf16', [[], []], [7, 5, 9], transposes),
    ]),
    productCase('f32', [[], []], [63, 7, 65], [false, false]),
    productCase('f32', [[], []], [1, 1, 1], [false, false]),
    ...BATCHES.flatMap(([, a, b]) =>
      TRANSPOSES.map((transposes) => productCase('f32', [a, b], [3, 5, 7], transposes)),
    ),
    ...FLOATS.slice(1).flatMap((dtype) => [
      productCase(dtype, [[3], [3]], [3, 5, 7], [false, true]),
      productCase(dtype, [[2, 3], []], [3, 5, 7], [false, false]),
    ]),
    ...emptyCases(),
    ...linearCases(),
    ...FLOATS.flatMap(endingCases),
  ];
}

function productCase(
  dtype: FloatDType,
  [aLead, bLead]: readonly [readonly number[], readonly number[]],
  [m, n, k]: readonly [number, number, number],
  [transposeA, transposeB]: readonly [boolean, boolean],
): OpCase {
  const a = [...aLead, ...(transposeA ? [k, m] : [m, k])];
  const b = [...bLead, ...(transposeB ? [n, k] : [k, n])];
  const text = `[${a.join(', ')}]${transposeA ? '^T' : ''} x [${b.join(', ')}]${transposeB ? '^T' : ''}`;
  return opCase(`matmul ${dtype} ${text}`, {
    dtype,
    inputs: [{ shape: a }, { shape: b }],
    op: ([x, y]) => matmul(x!, y!, { transposeA, transposeB }),
    twin: ([x, y]) => matmulTwin(x!, y!, { transposeA, transposeB }),
    roundings: 2, // gradients of broadcast operands add rounded products
  });
}

/** Takes sums of nothing, which are zero, as are the gradients of their operands. */
function emptyCases(): OpCase[] {
  return [
    productCase('f32', [[], []], [3, 2, 0], [false, false]),
    productCase('f32', [[2], []], [3, 2, 0], [false, false]),
    productCase('f32', [[2], [2]], [0, 2, 3], [false, false]),
    productCase('f32', [[0], []], [3, 2, 5], [false, false]),
  ];
}

function linearCases(): OpCase[] {
  return FLOATS.flatMap((dtype) =>
    [false, true].flatMap((transposeWeight) =>
      [false, true].map((hasBias) => linearCase([dtype, dtype], { transposeWeight, hasBias })),
    ),
  ).concat([
    linearCase(['f16', 'f32'], { transposeWeight: false, hasBias: true }),
    linearCase(['f32', 'bf16'], { transposeWeight: true, hasBias: true }),
    linearCase(['f32', 'f32'], { transposeWeight: false, hasBias: true, k: 0 }),
    linearCase(['f32', 'f32'], { transposeWeight: false, hasBias: false, lead: [] }),
  ]);
}

function linearCase(
  [dtype, weightDType]: readonly [FloatDType, FloatDType],
  options: {
    readonly transposeWeight: boolean;
    readonly hasBias: boolean;
    readonly k?: number;
    readonly lead?: readonly number[];
  },
): OpCase {
  const { transposeWeight, hasBias, k = 7, lead = [3, 3] } = options;
  const n = 5;
  const weight = transposeWeight ? [n, k] : [k, n];
  const x = [...lead, k];
  return opCase(
    `linear ${dtype} [${x.join(', ')}] by ${weightDType} [${weight.join(', ')}]${transposeWeight ? '^T' : ''}${hasBias ? ' with bias' : ''}`,
    {
      dtype,
      inputs: [
        { shape: x },
        { shape: weight, dtype: weightDType },
        ...(hasBias ? [{ shape: [n], dtype: weightDType }] : []),
      ],
      op: ([input, w, bias]) => linear(input!, { weight: w!, bias, transposeWeight }),
      twin: ([input, w, bias]) => {
        const rows = { shape: [input!.data.length / Math.max(1, k), k], data: input!.data };
        if (k === 0) {
          rows.shape[0] = 9;
        }
        const product = matmulTwin(rows, w!, { transposeB: transposeWeight });
        const out = bias === undefined ? product : pairTwin(product, bias, (a, b) => a + b);
        return { shape: [...lead, n], data: out.data };
      },
      roundings: 2, // the bias's gradient adds rounded terms
    },
  );
}

/** Takes linear maps that end with an addition or an activation, and maps of an activation. */
function endingCases(dtype: FloatDType): OpCase[] {
  const [x, inner, outer] = [{ shape: [2, 3, 7] }, { shape: [7, 5] }, { shape: [5, 7] }];
  const rowsOf = (y: TwinArray) => ({ shape: [6, y.shape.at(-1)!], data: y.data });
  const mapped = (y: TwinArray, w: TwinArray) => {
    const { data } = matmulTwin(rowsOf(y), w, {});
    return { shape: [2, 3, w.shape[1]!], data };
  };
  const plus = (a: TwinArray, b: TwinArray) => pairTwin(a, b, (u, v) => u + v);
  const activations = Object.entries(ACTIVATION_TWINS) as [Activation, (x: number) => number][];
  return [
    opCase(`linear ${dtype} with a residual`, {
      dtype,
      inputs: [x, inner, { shape: [5] }, { shape: [2, 3, 5] }],
      op: ([y, weight, bias, residual]) => linear(y!, { weight: weight!, bias, residual }),
      twin: ([y, w, bias, residual]) => plus(plus(mapped(y!, w!), bias!), residual!),
      roundings: 3,
    }),
    ...activations.slice(0, dtype === 'f32' ? undefined : 1).map(([activation, f]) =>
      opCase(`linear ${dtype} of a linear with ${activation}`, {
        dtype,
        inputs: [x, inner, outer],
        op: ([y, first, second]) =>
          y!.device.scope(() =>
            linear(linear(y!, { weight: first!, activation }), { weight: second! }),
          ),
        twin: ([y, first, second]) => mapped(mapTwin(mapped(y!, first!), f), second!),
        roundings: 4,
      }),
    ),
    opCase(`linear ${dtype} of what others use, too`, {
      dtype,
      inputs: [{ shape: [2, 3, 5] }, { shape: [5, 5] }, { shape: [5, 5] }],
      op: ([y, first, second]) =>
        y!.device.scope(() => {
          const active = gelu(y!, { approximate: 'tanh' });
          const both = add(linear(active, { weight: first! }), linear(active, { weight: second! }));
          const alone = gelu(y!, { approximate: 'tanh' });
          return add(add(both, linear(alone, { weight: first! })), neg(alone));
        }),
      twin: ([y, first, second]) => {
        const active = mapTwin(y!, geluTanh);
        const both = plus(mapped(active, first!), mapped(active, second!));
        const negative = mapTwin(active, (value) => -value);
        return plus(plus(both, mapped(active, first!)), negative);
      },
      roundings: 8,
    }),
  ];
}
