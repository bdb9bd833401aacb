// NaN, infinities and overflow in kernels over rows and in products. They must reach what depends
// on them and nothing else: not the next row, not what a mask hides, not a gradient that is 0
// because its target is no class, and not an output that overwrites a NaN.

import type { DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';
import { PLAIN } from './matmul.js';
import { runNorm, runNormBackward } from './row-norm.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

export function specialRowCases(): ConformanceCase[] {
  return [
    ...FLOATS.map(softmaxCase),
    ...FLOATS.map(causalCase),
    tailCase(),
    ...FLOATS.map((dtype) => normCase(true, dtype)),
    ...FLOATS.map((dtype) => normCase(false, dtype)),
    ...FLOATS.map(crossEntropyCase),
    ...FLOATS.map(matmulCase),
    ...FLOATS.map(matmulOverflowCase),
  ];
}

/** Makes a row for each special value, which replaces one element, and a last row without any. */
function rowsOf(
  calls: CallRecorder,
  cols: number,
  values: readonly number[],
  place: number,
): number[] {
  return [...values, 0.5].flatMap((value) =>
    Array.from({ length: cols }, (_, j) => (j === place ? value : calls.random.uniform(-2, 2))),
  );
}

function softmaxCase(dtype: DType): ConformanceCase {
  const name = `softmax ${dtype} of NaN and infinities, and backward`;
  return recordedCase(name, 'transcendental', (calls) => {
    const special = [NAN, INF, -INF];
    for (const [cols, place] of [
      [7, 0],
      [65, 64],
      [130, 77],
    ] as const) {
      const rows = special.length + 2;
      const lowest = new Array(cols).fill(-INF);
      const x = calls.values([...rowsOf(calls, cols, special, place), ...lowest], dtype);
      const size = rows * cols;
      for (const isLog of [false, true]) {
        const call = { rows, cols, scale: 0.5, isLog };
        calls.run('softmax', { ...call, x, out: calls.output(size, dtype), causalRows: 0 });
        const y = calls.floats(size, dtype, { low: isLog ? -3 : 0, high: isLog ? -1 : 0.1 });
        calls.run('softmaxBackward', { ...call, y, dy: x, out: calls.output(size, dtype) });
        const dy = calls.floats(size, dtype);
        calls.run('softmaxBackward', { ...call, y: x, dy, out: calls.output(size, dtype) });
      }
    }
  });
}

/** Makes column 5 special in each row. Rows 0 to 4 do not see it and must not depend on it. */
function causalCase(dtype: DType): ConformanceCase {
  return recordedCase(`softmax ${dtype} hides NaN behind its mask`, 'transcendental', (calls) => {
    const cols = 9;
    for (const value of [NAN, INF]) {
      const x = calls.values(
        Array.from({ length: cols * cols }, (_, i) => (i % cols === 5 ? value : (i % 7) / 3)),
        dtype,
      );
      for (const isLog of [false, true]) {
        const out = calls.output(cols * cols, dtype);
        calls.run('softmax', { x, out, rows: cols, cols, scale: 1, isLog, causalRows: cols });
      }
    }
  });
}

/** Compares probabilities as small as e^-85 under a relative tolerance. */
function tailCase(): ConformanceCase {
  return recordedCase('softmax and cross-entropy of small probabilities', 'tail', (calls) => {
    const scores = [0, -5, -20, -40, -60, -80, -85];
    const x = calls.values([...scores, ...scores.map((score) => score + 30)], 'f32');
    const extent = { rows: 2, cols: 7 };
    const call = { x, ...extent, scale: 1, isLog: false, causalRows: 0 };
    calls.run('softmax', { ...call, out: calls.output(14, 'f32') });
    const targets = calls.values([2, 2 ** 31 - 1], 'i32');
    const lse = calls.values([0.006715348, 30.006715], 'f32');
    const dLoss = calls.values([0.5, 1], 'f32');
    const out = calls.output(14, 'f32');
    calls.run('crossEntropyBackward', { ...extent, logits: x, targets, lse, dLoss, out });
  });
}

/** Computes norms with special values in their rows, residual, parameters or gradients. */
function normCase(isCentered: boolean, dtype: DType): ConformanceCase {
  const name = `${isCentered ? 'layerNorm' : 'rmsNorm'} ${dtype} of NaN and infinities, and backward`;
  return recordedCase(name, 'sum', (calls) => {
    for (const cols of [7, 65]) {
      const special = [NAN, INF, -INF];
      const rows = special.length + 1;
      const output = (size: number) => calls.output(size, dtype);
      const broken = calls.values(rowsOf(calls, cols, special, cols - 1), dtype);
      const plain = calls.floats(rows * cols, dtype);
      const weight = calls.floats(cols, dtype, { low: 0.5 });
      const brokenWeight = calls.values([...special, ...new Array(cols - 3).fill(1)], dtype);
      const bias = isCentered ? calls.floats(cols, dtype) : undefined;
      const extent = { rows, cols, weightOffset: 1 };
      for (const given of [
        { x: broken, weight },
        { x: plain, residual: broken, sum: output(rows * cols), weight },
        { x: plain, weight: brokenWeight },
      ]) {
        const out = output(rows * cols);
        runNorm(calls, isCentered, { ...extent, ...given, bias, out, eps: 1e-5 });
      }
      for (const given of [
        { x: broken, dy: plain },
        { x: plain, dy: broken },
        { x: plain, dy: plain, dSum: broken },
      ]) {
        const dBias = isCentered ? output(cols) : undefined;
        const gradients = { dx: output(rows * cols), dWeight: output(cols), dBias };
        runNormBackward(calls, isCentered, { ...extent, ...given, weight, ...gradients });
      }
    }
  });
}

/**
 * Makes a fourth row with -inf at its target, so that its loss is infinite; the last has no target.
 */
function crossEntropyCase(dtype: DType): ConformanceCase {
  return recordedCase(
    `crossEntropy ${dtype} of NaN and infinities, and backward`,
    'sum',
    (calls) => {
      for (const cols of [7, 65]) {
        const special = [NAN, INF, -INF, -INF, NAN];
        const rows = special.length + 1;
        const extent = { rows, cols };
        const values = rowsOf(calls, cols, special, 4);
        const logits = calls.values(values, dtype);
        const targets = calls.values([1, 2, 3, 4, -100, 0], 'i32');
        const [loss, lse] = [calls.output(rows, 'f32'), calls.output(rows, 'f32')];
        calls.run('crossEntropy', { ...extent, logits, targets, loss, lse });
        const given = calls.values([NAN, INF, 2, 2, NAN, 2], 'f32');
        for (const gradients of [
          [1, 1, 1, 1, 1, 1],
          [1, 1, NAN, INF, NAN, 1],
        ]) {
          const dLoss = calls.values(gradients, 'f32');
          const out = calls.output(rows * cols, dtype);
          calls.run('crossEntropyBackward', { ...extent, logits, targets, lse: given, dLoss, out });
        }
      }
    },
  );
}

/**
 * Computes products with special values in a, in b, in the bias or in the output that is added to,
 * some of them in the last of several blocks of k, and one that overwrites an output of NaN.
 */
function matmulCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} of NaN and infinities`, 'sum', (calls) => {
    for (const [m, n, k] of [
      [5, 6, 7],
      [3, 10, 20],
      [9, 34, 300],
    ] as const) {
      for (const transposeB of [false, true]) {
        const extent = { m, n, k, transposeB, aRow: k, bRow: transposeB ? k : n, outRow: n };
        const call = { ...PLAIN, ...extent };
        const plain = {
          a: calls.floats(m * k, dtype),
          b: calls.floats(k * n, dtype),
          bias: undefined,
        };
        const broken = (size: number, places: readonly (readonly [number, number])[]) => {
          const values = Array.from({ length: size }, () => calls.random.uniform(-1, 1));
          for (const [place, value] of places) {
            values[place] = value;
          }
          return values;
        };
        const last = calls.values(
          broken(m * k, [
            [k - 1, NAN],
            [2 * k - 1, INF],
          ]),
          dtype,
        );
        calls.run('matmul', { ...call, ...plain, a: last, out: calls.output(m * n, dtype) });
        const b = calls.values(broken(k * n, [[k * n - 1, -INF]]), dtype);
        calls.run('matmul', { ...call, ...plain, b, out: calls.output(m * n, dtype) });
        const zeros = calls.values(new Array(m * k).fill(0), dtype);
        calls.run('matmul', { ...call, ...plain, a: zeros, b, out: calls.output(m * n, dtype) });
        const places = [
          [0, NAN],
          [n - 1, INF],
        ] as const;
        const bias = calls.values(broken(n, places), dtype);
        calls.run('matmul', { ...call, ...plain, bias, out: calls.output(m * n, dtype) });
        for (const accumulate of [true, false]) {
          const before = broken(m * n, [...places, [m * n - 1, NAN]]);
          const out = calls.values(before, dtype, { isWritten: true });
          calls.run('matmul', { ...call, ...plain, out, accumulate });
        }
      }
    }
  });
}

/**
 * Takes sums beyond the dtype, which are infinite, and sums of which only partial sums are beyond.
 */
function matmulOverflowCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} of sums near its largest number`, 'sum', (calls) => {
    const large = dtype === 'f16' ? 200 : 2 ** 59;
    const k = 520;
    const extent = { m: 4, n: 8, k, aRow: k, bRow: 8, outRow: 8 };
    const rows = [
      () => 2 * large,
      (i: number) => (i < k / 2 ? large : -large),
      (i: number) => (i % 2 === 0 ? large : -large),
      () => 1,
    ];
    const a = calls.values(
      rows.flatMap((valueAt) => Array.from({ length: k }, (_, i) => valueAt(i))),
      dtype,
    );
    const b = calls.values(new Array(k * 8).fill(large), dtype);
    calls.run('matmul', { ...PLAIN, ...extent, a, b, out: calls.output(32, dtype) });
  });
}
