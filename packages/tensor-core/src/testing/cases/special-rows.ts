// NaN, infinities and overflow through kernels over rows and products. They must reach what depends
// on them, and nothing else: not the next row, not what a mask hides, not a gradient that a target
// outside leaves at 0, nor an output that only lies where a NaN was before.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { FLOATS } from '../sizes.js';
import type { Twin } from '../twin.js';
import { PLAIN } from './matmul.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

export function specialRowCases(): ConformanceCase[] {
  return [
    ...FLOATS.map(softmaxCase),
    ...FLOATS.map(causalCase),
    tailCase(),
    ...FLOATS.map(layerNormCase),
    ...FLOATS.map(rmsNormCase),
    ...FLOATS.map(crossEntropyCase),
    ...FLOATS.map(matmulCase),
    ...FLOATS.map(matmulOverflowCase),
  ];
}

/** Rows with one value replaced by each of the special ones, the last without. */
function rowsOf(twin: Twin, cols: number, values: readonly number[], place: number): number[] {
  return [...values, 0.5].flatMap((value) =>
    Array.from({ length: cols }, (_, j) => (j === place ? value : twin.random.uniform(-2, 2))),
  );
}

function softmaxCase(dtype: DType): ConformanceCase {
  const name = `softmax ${dtype} of NaN and infinities, and backward`;
  return twinCase(name, 'transcendental', (twin) => {
    const special = [NAN, INF, -INF];
    for (const [cols, place] of [
      [7, 0],
      [65, 64],
      [130, 77],
    ] as const) {
      const rows = special.length + 2;
      const lowest = new Array(cols).fill(-INF);
      const x = twin.values([...rowsOf(twin, cols, special, place), ...lowest], dtype);
      const size = rows * cols;
      for (const isLog of [false, true]) {
        const call = { rows, cols, scale: 0.5, isLog };
        twin.run('softmax', { ...call, x, out: twin.output(size, dtype), causalRows: 0 });
        const y = twin.floats(size, dtype, { low: isLog ? -3 : 0, high: isLog ? -1 : 0.1 });
        twin.run('softmaxBackward', { ...call, y, dy: x, out: twin.output(size, dtype) });
        const dy = twin.floats(size, dtype);
        twin.run('softmaxBackward', { ...call, y: x, dy, out: twin.output(size, dtype) });
      }
    }
  });
}

/** Column j of row r is special; a row that cannot see it is as without. */
function causalCase(dtype: DType): ConformanceCase {
  return twinCase(`softmax ${dtype} hides NaN behind its mask`, 'transcendental', (twin) => {
    const cols = 9;
    for (const value of [NAN, INF]) {
      const x = twin.values(
        Array.from({ length: cols * cols }, (_, i) => (i % cols === 5 ? value : (i % 7) / 3)),
        dtype,
      );
      for (const isLog of [false, true]) {
        const out = twin.output(cols * cols, dtype);
        twin.run('softmax', { x, out, rows: cols, cols, scale: 1, isLog, causalRows: cols });
      }
    }
  });
}

/** Probabilities of e^-80 by their ratio. */
function tailCase(): ConformanceCase {
  return twinCase('softmax and cross-entropy of small probabilities', 'tail', (twin) => {
    const scores = [0, -5, -20, -40, -60, -80, -85];
    const x = twin.values([...scores, ...scores.map((s) => s + 30)], 'f32');
    const extent = { rows: 2, cols: 7 };
    const call = { x, ...extent, scale: 1, isLog: false, causalRows: 0 };
    twin.run('softmax', { ...call, out: twin.output(14, 'f32') });
    const targets = twin.values([2, 2 ** 31 - 1], 'i32');
    const lse = twin.values([0.006715348, 30.006715], 'f32');
    const dLoss = twin.values([0.5, 1], 'f32');
    const out = twin.output(14, 'f32');
    twin.run('crossEntropyBackward', { ...extent, logits: x, targets, lse, dLoss, out });
  });
}

function layerNormCase(dtype: DType): ConformanceCase {
  return twinCase(`layerNorm ${dtype} of NaN and infinities, and backward`, 'sum', (twin) => {
    for (const cols of [7, 65]) {
      const special = [NAN, INF, -INF];
      const rows = special.length + 1;
      const extent = { rows, cols };
      const x = twin.values(rowsOf(twin, cols, special, cols - 1), dtype);
      const weight = twin.floats(cols, dtype, { low: 0.5 });
      const bias = twin.floats(cols, dtype);
      const stats = { mean: twin.output(rows, 'f32'), rstd: twin.output(rows, 'f32') };
      const out = twin.output(rows * cols, dtype);
      twin.run('layerNorm', { ...extent, x, weight, bias, out, ...stats, eps: 1e-5 });
      const broken = twin.values([...special, ...new Array(cols - 3).fill(1)], dtype);
      const plain = twin.floats(rows * cols, dtype);
      twin.run('layerNorm', {
        ...extent,
        x: plain,
        weight: broken,
        bias,
        out: twin.output(rows * cols, dtype),
        mean: twin.output(rows, 'f32'),
        rstd: twin.output(rows, 'f32'),
        eps: 1e-5,
      });
      const saved = {
        mean: twin.floats(rows, 'f32'),
        rstd: twin.floats(rows, 'f32', { low: 0.5 }),
      };
      const output = (size: number) => twin.output(size, dtype);
      for (const [input, dy] of [
        [plain, x],
        [x, plain],
      ] as const) {
        const common = { ...extent, x: input, dy, ...saved };
        const gradients = { dx: output(rows * cols), dWeight: output(cols), dBias: output(cols) };
        twin.run('layerNormBackward', { ...common, weight, ...gradients });
      }
    }
  });
}

/** In the rows, in the weight, in the gradients. */
function rmsNormCase(dtype: DType): ConformanceCase {
  return twinCase(`rmsNorm ${dtype} of NaN and infinities, and backward`, 'sum', (twin) => {
    for (const cols of [7, 65]) {
      const special = [NAN, INF, -INF];
      const rows = special.length + 1;
      const extent = { rows, cols, weightOffset: 1 };
      const output = (size: number) => twin.output(size, dtype);
      const broken = twin.values(rowsOf(twin, cols, special, cols - 1), dtype);
      const plain = twin.floats(rows * cols, dtype);
      const weights = [
        twin.floats(cols, dtype, { low: 0.5 }),
        twin.values([...special, ...new Array(cols - 3).fill(1)], dtype),
      ];
      for (const [x, residual, weight] of [
        [broken, undefined, weights[0]],
        [plain, broken, weights[0]],
        [plain, undefined, weights[1]],
      ] as const) {
        const sum = residual && output(rows * cols);
        const made = { out: output(rows * cols), rstd: twin.output(rows, 'f32') };
        twin.run('rmsNorm', { ...extent, x, residual, weight, sum, ...made, eps: 1e-6 });
      }
      const rstd = twin.floats(rows, 'f32', { low: 0.5 });
      for (const [x, dy, dSum] of [
        [broken, plain, undefined],
        [plain, broken, undefined],
        [plain, plain, broken],
      ] as const) {
        const gradients = { dx: output(rows * cols), dWeight: output(cols) };
        const call = { ...extent, x, weight: weights[0], rstd, dy, dSum };
        twin.run('rmsNormBackward', { ...call, ...gradients });
      }
    }
  });
}

/** The fourth row has -inf at its target: its loss is infinite. The last has no target. */
function crossEntropyCase(dtype: DType): ConformanceCase {
  return twinCase(`crossEntropy ${dtype} of NaN and infinities, and backward`, 'sum', (twin) => {
    for (const cols of [7, 65]) {
      const special = [NAN, INF, -INF, -INF, NAN];
      const rows = special.length + 1;
      const extent = { rows, cols };
      const values = rowsOf(twin, cols, special, 4);
      const logits = twin.values(values, dtype);
      const targets = twin.values([1, 2, 3, 4, -100, 0], 'i32');
      const [loss, lse] = [twin.output(rows, 'f32'), twin.output(rows, 'f32')];
      twin.run('crossEntropy', { ...extent, logits, targets, loss, lse });
      const given = twin.values([NAN, INF, 2, 2, NAN, 2], 'f32');
      for (const gradients of [
        [1, 1, 1, 1, 1, 1],
        [1, 1, NAN, INF, NAN, 1],
      ]) {
        const dLoss = twin.values(gradients, 'f32');
        const out = twin.output(rows * cols, dtype);
        twin.run('crossEntropyBackward', { ...extent, logits, targets, lse: given, dLoss, out });
      }
    }
  });
}

/** In a, in b, in the bias, in what is added to; past a block of k; and under an output of NaN. */
function matmulCase(dtype: DType): ConformanceCase {
  return twinCase(`matmul ${dtype} of NaN and infinities`, 'sum', (twin) => {
    for (const [m, n, k] of [
      [5, 6, 7],
      [3, 10, 20],
      [9, 34, 300],
    ] as const) {
      for (const transposeB of [false, true]) {
        const extent = { m, n, k, transposeB, aRow: k, bRow: transposeB ? k : n, outRow: n };
        const call = { ...PLAIN, ...extent };
        const plain = {
          a: twin.floats(m * k, dtype),
          b: twin.floats(k * n, dtype),
          bias: undefined,
        };
        const broken = (size: number, places: readonly (readonly [number, number])[]) => {
          const values = Array.from({ length: size }, () => twin.random.uniform(-1, 1));
          for (const [place, value] of places) {
            values[place] = value;
          }
          return values;
        };
        const last = twin.values(
          broken(m * k, [
            [k - 1, NAN],
            [2 * k - 1, INF],
          ]),
          dtype,
        );
        twin.run('matmul', { ...call, ...plain, a: last, out: twin.output(m * n, dtype) });
        const b = twin.values(broken(k * n, [[k * n - 1, -INF]]), dtype);
        twin.run('matmul', { ...call, ...plain, b, out: twin.output(m * n, dtype) });
        const zeros = twin.values(new Array(m * k).fill(0), dtype);
        twin.run('matmul', { ...call, ...plain, a: zeros, b, out: twin.output(m * n, dtype) });
        const places = [
          [0, NAN],
          [n - 1, INF],
        ] as const;
        const bias = twin.values(broken(n, places), dtype);
        twin.run('matmul', { ...call, ...plain, bias, out: twin.output(m * n, dtype) });
        for (const accumulate of [true, false]) {
          const before = broken(m * n, [...places, [m * n - 1, NAN]]);
          const out = twin.values(before, dtype, { isWritten: true });
          twin.run('matmul', { ...call, ...plain, out, accumulate });
        }
      }
    }
  });
}

/** Sums beyond the dtype are infinite; partial sums beyond it, of a sum within, are not. */
function matmulOverflowCase(dtype: DType): ConformanceCase {
  return twinCase(`matmul ${dtype} of sums near its largest number`, 'sum', (twin) => {
    const large = dtype === 'f16' ? 200 : 2 ** 59;
    const k = 520;
    const extent = { m: 4, n: 8, k, aRow: k, bRow: 8, outRow: 8 };
    const rows = [
      () => 2 * large,
      (i: number) => (i < k / 2 ? large : -large),
      (i: number) => (i % 2 === 0 ? large : -large),
      () => 1,
    ];
    const a = twin.values(
      rows.flatMap((of) => Array.from({ length: k }, (_, i) => of(i))),
      dtype,
    );
    const b = twin.values(new Array(k * 8).fill(large), dtype);
    twin.run('matmul', { ...PLAIN, ...extent, a, b, out: twin.output(32, dtype) });
  });
}
