// NaN, infinities and overflow in kernels of single elements, reductions, moves and optimizers. A
// training step is skipped if the norm of its gradients is not finite. So a kernel that turns NaN
// or infinity into a number lets a broken step pass for a good one.

import type { DType } from '@shardweave/dtypes';
import type { BinaryKind } from '../../kernel-calls/elementwise.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';
import { UNARY_KINDS } from './elementwise.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;
/** The last two are infinite in f16, and the square of the last is infinite in f32 too. */
const SPECIAL = [NAN, INF, -INF, 0, 1, -1, 0.5, 2, -3, 300, -65504, 7e4, 3e38];
/** Places at both ends, inside vectors and words, and in the first and last lane and part. */
const PLACES = [0, 1, 2, 3, 31, 62, 63, 64];
const BINARY_KINDS: readonly BinaryKind[] = [
  'add',
  'sub',
  'mul',
  'div',
  'maximum',
  'minimum',
  'pow',
];

export function specialValueCases(): ConformanceCase[] {
  return [
    fillCase(),
    ...FLOATS.map(unaryCase),
    ...FLOATS.map(binaryCase),
    ...FLOATS.map(overflowCase),
    ...FLOATS.map(gateCase),
    tailCase(),
    ...FLOATS.map(reduceCase),
    ...FLOATS.map(extremumCase),
    ...FLOATS.map(normCase),
    treeCase(),
    clipCase(),
    ...FLOATS.map(moveCase),
    ...FLOATS.map(rotaryCase),
    ...FLOATS.map(optimizerCase),
  ];
}

function fillCase(): ConformanceCase {
  return recordedCase('fill with NaN, infinities and more than fits', 'exact', (calls) => {
    for (const dtype of [...FLOATS, 'i32', 'u32'] as const) {
      for (const value of [NAN, INF, -INF, 7e4, -7e4, 1e39, 65519, 65520]) {
        calls.run('fill', { out: calls.output(5, dtype), value });
      }
    }
  });
}

function unaryCase(dtype: DType): ConformanceCase {
  return recordedCase(
    `unary ${dtype} of NaN and infinities, and backward`,
    'transcendental',
    (calls) => {
      const x = calls.values(SPECIAL, dtype);
      const ones = calls.values(new Array(SPECIAL.length).fill(1), dtype);
      const moderate = [0.75, -0.5, 0].map((value) =>
        calls.values(new Array(SPECIAL.length).fill(value), dtype),
      );
      const output = () => calls.output(SPECIAL.length, dtype);
      for (const kind of UNARY_KINDS) {
        calls.run('unary', { kind, x, out: output() });
        calls.run('unaryBackward', { kind, x, dy: ones, out: output() });
        for (const at of moderate) {
          calls.run('unaryBackward', { kind, x: at, dy: x, out: output() });
        }
      }
      calls.run('affine', { x, out: output(), scale: 2, shift: 1 });
      calls.run('affine', { x, out: output(), scale: 0, shift: 1 });
      calls.run('affine', { x: ones, out: output(), scale: INF, shift: NAN });
    },
  );
}

/** Computes a gate with special values in one operand at a time. */
function gateCase(dtype: DType): ConformanceCase {
  return recordedCase(
    `gated ${dtype} of NaN and infinities, and backward`,
    'transcendental',
    (calls) => {
      const cols = SPECIAL.length;
      const extent = { rows: 1, cols, row: cols };
      const special = calls.values(SPECIAL, dtype);
      const plain = calls.floats(cols, dtype, { low: 0.5 });
      for (const kind of ['silu', 'gelu', 'geluTanh'] as const) {
        for (const [gate, up, dy] of [
          [special, plain, plain],
          [plain, special, plain],
          [plain, plain, special],
        ] as const) {
          calls.run('gated', { kind, gate, up, out: calls.output(cols, dtype), ...extent });
          const out = calls.output(2 * cols, dtype);
          calls.run('gatedBackward', { kind, of: 'both', gate, up, dy, out, ...extent });
        }
      }
    },
  );
}

/** Combines each special value with each, dense and broadcast. */
function binaryCase(dtype: DType): ConformanceCase {
  return recordedCase(`binary ${dtype} of NaN and infinities`, 'transcendental', (calls) => {
    const n = SPECIAL.length;
    const size = n * n;
    const pick = (indexOf: (i: number) => number) =>
      calls.values(
        Array.from({ length: size }, (_, i) => SPECIAL[indexOf(i)]!),
        dtype,
      );
    const [a, b] = [pick((i) => Math.floor(i / n)), pick((i) => i % n)];
    const column = calls.values(SPECIAL, dtype);
    for (const kind of BINARY_KINDS) {
      const dense = { shape: [size], aStrides: [1], bStrides: [1] };
      calls.run('binary', { kind, a, b, out: calls.output(size, dtype), ...dense });
      const broadcast = { shape: [n, n], aStrides: [1, 0], bStrides: [0, 1] };
      const out = calls.output(size, dtype);
      calls.run('binary', { kind, a: column, b: column, out, ...broadcast });
    }
  });
}

/** Takes results around the largest number of the dtype, which are rounded to it or infinite. */
function overflowCase(dtype: DType): ConformanceCase {
  return recordedCase(`overflow of ${dtype} through ops`, 'arithmetic', (calls) => {
    const largest = { f32: 3.4e38, f16: 65504, bf16: 3.38e38 }[dtype as 'f32' | 'f16' | 'bf16'];
    const x = calls.values([largest, -largest, largest / 2, 1, 0.25], dtype);
    const output = () => calls.output(5, dtype);
    const dense = { shape: [5], aStrides: [1], bStrides: [1] };
    for (const kind of ['add', 'mul'] as const) {
      calls.run('binary', { kind, a: x, b: x, out: output(), ...dense });
    }
    calls.run('unary', { kind: 'square', x, out: output() });
    calls.run('affine', { x, out: output(), scale: -4, shift: 1 });
    calls.run('dropout', { x, out: output(), p: 0.75, key0: 1, key1: 2, counterOffset: 0 });
    const call = { x, outer: 1, dim: 5, inner: 1 };
    calls.run('reduce', { ...call, kind: 'sum', out: calls.output(1, dtype) });
    calls.run('reduce', { ...call, kind: 'sum', out: calls.output(1, 'f32') });
  });
}

/**
 * Compares results as small as 1e-38 under a relative tolerance. Under the absolute one of other
 * cases, 5e-6, a kernel could return 0 for all of them.
 */
function tailCase(): ConformanceCase {
  return recordedCase('exp, sigmoid and pow of small results', 'tail', (calls) => {
    const x = calls.values([-1, -10, -20, -40, -60, -80, -87], 'f32');
    const output = () => calls.output(7, 'f32');
    for (const kind of ['exp', 'sigmoid'] as const) {
      calls.run('unary', { kind, x, out: output() });
      calls.run('unaryBackward', {
        kind,
        x,
        dy: calls.floats(7, 'f32', { low: 0.5 }),
        out: output(),
      });
    }
    const [a, b] = [calls.values(new Array(7).fill(Math.E), 'f32'), x];
    const dense = { shape: [7], aStrides: [1], bStrides: [1] };
    calls.run('binary', { kind: 'pow', a, b, out: output(), ...dense });
  });
}

function reduceCase(dtype: DType): ConformanceCase {
  return recordedCase(`reduce ${dtype} of NaN and infinities`, 'sum', (calls) => {
    for (const kind of ['sum', 'mean', 'max', 'min'] as const) {
      for (const value of [NAN, INF, -INF]) {
        const rows = PLACES.map((place) => withValue(calls, 65, place, value));
        const x = calls.values(rows.flat(), dtype, { offset: 1 });
        const outer = PLACES.length;
        const out = calls.output(outer, dtype);
        calls.run('reduce', { kind, x, out, outer, dim: 65, inner: 1 });
        const columns = calls.output(65, dtype);
        calls.run('reduce', { kind, x, out: columns, outer: 1, dim: outer, inner: 65 });
      }
      const mixed = [...withValue(calls, 5000, 4097, INF)];
      mixed[17] = -INF; // their sum is NaN
      for (const values of [mixed, withValue(calls, 5000, 4999, NAN)]) {
        const x = calls.values(values, dtype);
        calls.run('reduce', {
          kind,
          x,
          out: calls.output(1, dtype),
          outer: 1,
          dim: 5000,
          inner: 1,
        });
      }
      const lowest = calls.values(new Array(65).fill(-INF), dtype);
      calls.run('reduce', {
        kind,
        x: lowest,
        out: calls.output(1, dtype),
        outer: 1,
        dim: 65,
        inner: 1,
      });
    }
  });
}

/** Takes lines with a NaN. No element equals their extremum, and their gradient is NaN as well. */
function extremumCase(dtype: DType): ConformanceCase {
  return recordedCase(`extremumBackward ${dtype} of NaN and infinities`, 'arithmetic', (calls) => {
    const lines = [NAN, INF, -INF].map((value) => withValue(calls, 65, 31, value));
    const x = calls.values([...lines.flat(), ...withValue(calls, 65, 3, 2)], dtype);
    const extent = { outer: 4, dim: 65, inner: 1 };
    for (const kind of ['max', 'min'] as const) {
      const y = calls.output(4, dtype, { tolerance: 'exact' });
      calls.run('reduce', { kind, x, out: y, ...extent });
      for (const values of [
        [1, 2, 3, 4],
        [1, NAN, INF, NAN],
      ]) {
        const dy = calls.values(values, dtype);
        calls.run('extremumBackward', { x, y, dy, out: calls.output(260, dtype), ...extent });
      }
    }
  });
}

function normCase(dtype: DType): ConformanceCase {
  return recordedCase(`normNodes ${dtype} of NaN, infinities and overflow`, 'sum', (calls) => {
    for (const value of [NAN, INF, -INF, dtype === 'f16' ? 65504 : 1e20]) {
      for (const power of [2, 1, 3, INF]) {
        for (const place of [0, 64, 4095, 4999]) {
          const x = calls.values(withValue(calls, 5000, place, value), dtype);
          const out = calls.output(2, 'f32');
          const spans = [
            { start: 0, length: 4097 },
            { start: 4097, length: 903 },
          ];
          calls.run('normNodes', { x, out, spans, power });
        }
      }
    }
  });
}

function treeCase(): ConformanceCase {
  return recordedCase('normTree of NaN, infinities and overflow', 'exact', (calls) => {
    for (const value of [NAN, INF, 3e38]) {
      for (const place of [0, 1, 255, 256, 599]) {
        const values = new Array(600).fill(0.5);
        values[place] = value;
        values[300] = value;
        const x = calls.values(values, 'f32');
        for (const isMax of [false, true]) {
          const spans = [{ start: 0, length: 600 }];
          calls.run('normTree', { x, out: calls.output(1, 'f32'), spans, isMax });
        }
      }
    }
  });
}

/** Compares bits, since every device computes the same factor from the same sum. */
function clipCase(): ConformanceCase {
  return recordedCase('clipFactor of NaN, infinities and extremes', 'exact', (calls) => {
    for (const value of [NAN, INF, 0, 2 ** -126, 1e-30, 1, 3.4e38]) {
      for (const maxNorm of [1e-39, 2 ** -126, 1e-30, 1, 3e38, INF]) {
        const outputs = { norm: calls.output(1, 'f32'), scale: calls.output(1, 'f32') };
        calls.run('clipFactor', {
          squares: calls.values([value], 'f32'),
          ...outputs,
          maxNorm,
          unscale: 1,
        });
      }
    }
  });
}

/** Moves special values, which must arrive where they belong and nowhere else. */
function moveCase(dtype: DType): ConformanceCase {
  return recordedCase(`moves of ${dtype} NaN and infinities`, 'exact', (calls) => {
    const size = SPECIAL.length;
    const x = calls.values(SPECIAL, dtype);
    const copy = { shape: [size], xOffset: 0, outOffset: 0, xStrides: [1], outStrides: [1] };
    calls.run('copyStrided', { ...copy, x, out: calls.output(size, dtype) });
    const kept = { key0: 3, key1: 4, counterOffset: 0 };
    calls.run('dropout', { x, out: calls.output(size, dtype), p: 0, ...kept });
    calls.run('dropout', { x, out: calls.output(size, dtype), p: 0.5, ...kept });
    const extent = { rows: 4, cols: 3, count: 5 };
    const ids = calls.values([3, 0, 9, 2, 0], 'u32');
    const table = calls.slice(x, 0, 12);
    calls.run('embedding', { ...extent, table, ids, out: calls.output(15, dtype) });
    const dy = calls.values([NAN, 1, INF, ...new Array(9).fill(1), -INF, 2, 3], dtype);
    calls.run('embeddingBackward', { ...extent, ids, dy, dTable: calls.output(12, dtype) });
  });
}

/** Turns points with a special value in one of their columns, beside heads that do not turn. */
function rotaryCase(dtype: DType): ConformanceCase {
  return recordedCase(`rotary ${dtype} of NaN and infinities`, 'transcendental', (calls) => {
    const values = [NAN, 1, 2, 3, INF, 1, 2, 3, 1, -INF, 2, 3, 1, 2, 3, NAN];
    const frequencies = calls.values([2 ** 29 + 5, 12345, 0, 0], 'u32');
    const extent = { tokens: 2, heads: 2, numRotated: 1, half: 2, period: 2, offset: 3 };
    for (const isInverse of [false, true]) {
      const x = calls.values(values, dtype);
      const out = calls.output(values.length, dtype);
      calls.run('rotary', { ...extent, x, frequencies, positions: undefined, out, isInverse });
    }
  });
}

/**
 * Makes steps with special values in the gradients, the parameters, the state and the scale. Those
 * in a momentum buffer that the first step overwrites, or that no step reads, must reach nothing.
 */
function optimizerCase(dtype: DType): ConformanceCase {
  return recordedCase(
    `adam and sgd with ${dtype} gradients of NaN and infinities`,
    'arithmetic',
    (calls) => {
      const at = (place: number, value: number) => {
        const values = new Array(9).fill(0.5);
        values[place] = value;
        return values;
      };
      const state = (values: readonly number[]) => calls.values(values, 'f32', { isWritten: true });
      const grad = calls.values([NAN, INF, -INF, 1, 1, 1, 1, 1, NAN], dtype);
      const segments = [{ start: 0, length: 8, group: 0 }]; // the last element is nobody's
      for (const scale of [undefined, 0, NAN, INF]) {
        const gradScale = scale === undefined ? undefined : calls.values([scale], 'f32');
        const common = { grad, gradScale, segments };
        calls.run('adam', {
          ...common,
          param: state(at(3, NAN)),
          expAvg: state(at(4, INF)),
          expAvgSq: state(at(5, NAN)),
          groups: [ADAM],
        });
        for (const isFirstStep of [false, true]) {
          calls.run('sgd', {
            ...common,
            param: state(at(3, INF)),
            momentumBuffer: state(at(6, NAN)),
            groups: [{ ...SGD, isFirstStep }],
          });
        }
        const unread = { ...SGD, momentum: 0, isFirstStep: false };
        const param = state(at(3, INF));
        calls.run('sgd', { ...common, param, momentumBuffer: state(at(6, NAN)), groups: [unread] });
      }
    },
  );
}

const ADAM = {
  lr: 0.1,
  beta1: 0.9,
  beta2: 0.99,
  eps: 1e-8,
  weightDecay: 0.1,
  biasCorrection1: 0.1,
  biasCorrection2: 0.01,
  decoupled: true,
};
const SGD = { lr: 0.1, momentum: 0.9, dampening: 0, weightDecay: 0.1, nesterov: false };

/** Makes random values, of which one is replaced. */
function withValue(calls: CallRecorder, size: number, place: number, value: number): number[] {
  return Array.from({ length: size }, (_, i) =>
    i === place ? value : calls.random.uniform(-1, 1),
  );
}
