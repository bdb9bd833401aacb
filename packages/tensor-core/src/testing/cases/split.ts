// Kernels with operands larger than a view may be on the device. For a device
// made with a small limit: at a real one of 128 MiB the same would take minutes.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { Backend } from '../../backend.js';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { ConformanceError } from '../conformance-error.js';
import { FLOATS } from '../sizes.js';
import type { ToleranceName } from '../tolerance.js';
import type { Twin } from '../twin.js';
import { runAttention } from './attention.js';

/** Keeps operands below a million elements. */
const MAX_LIMIT_BYTES = 64 * 1024;

/** Splits know elements by their bytes. */
const WIDTHS = ['f32', 'bf16'] as const;

export function splitCases(): ConformanceCase[] {
  return [
    splitCase('elementwise kernels', 'transcendental', elementwise),
    splitCase('cast and dropout', 'arithmetic', castAndDropout),
    splitCase('gated', 'transcendental', gated),
    splitCase('rotary', 'transcendental', rotary),
    splitCase('normNodes', 'sum', normNodes),
    splitCase('optimizers', 'transcendental', optimizers),
    splitCase('embedding', 'sum', embedding),
    splitCase('embedding of many tokens', 'sum', embeddingOfMany),
    splitCase('softmax', 'sum', softmax),
    splitCase('layerNorm', 'sum', layerNorm),
    splitCase('rmsNorm', 'sum', rmsNorm),
    splitCase('reductions of many lines', 'sum', reduceMany),
    splitCase('reductions of long lines', 'sum', reduceLong),
    splitCase('operands through strides', 'arithmetic', broadcast),
    splitCase('copies through strides', 'exact', copies),
    splitCase('gather', 'sum', gather),
    splitCase('topK', 'exact', topK),
    splitCase('cumSum', 'sum', cumSum),
    splitCase('crossEntropy', 'sum', crossEntropy),
    splitCase('attention', 'transcendental', attention),
    splitCase('matmul with many rows and columns', 'sum', matmulWide),
    splitCase('matmul with long sums', 'sum', matmulLong),
    splitCase('matmul with batches', 'sum', matmulBatches),
  ];
}

function splitCase(
  title: string,
  tolerance: ToleranceName,
  body: (twin: Twin, limitBytes: number) => void,
): ConformanceCase {
  const name = `split: ${title}`;
  const run = async (backend: Backend) => {
    const limit = backend.info.limits.maxViewBytes;
    if (limit > MAX_LIMIT_BYTES) {
      throw new ConformanceError(
        name,
        `expected a device that limits views to ${MAX_LIMIT_BYTES} bytes or less, got ${limit}`,
      );
    }
    await twinCase(name, tolerance, (twin) => body(twin, limit)).run(backend);
  };
  return { name, run };
}

/** Elements of three and a half views, and a few, so that parts don't end evenly. */
function numBeyond(limitBytes: number, dtype: DType): number {
  return Math.floor((3.5 * limitBytes) / byteSize(dtype)) + 5;
}

function elementwise(twin: Twin, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const size = numBeyond(limitBytes, dtype);
    const x = twin.floats(size, dtype, { offset: 1 });
    const y = twin.floats(size, dtype, { offset: 3 });
    const output = () => twin.output(size, dtype, { offset: 2 });
    twin.run('fill', { out: output(), value: 1.5 });
    twin.run('unary', { kind: 'tanh', x, out: output() });
    twin.run('unaryBackward', { kind: 'tanh', x, dy: y, out: output() });
    twin.run('affine', { x, out: output(), scale: 2, shift: 1 });
    const strides = { shape: [size], aStrides: [1], bStrides: [1] };
    twin.run('binary', { kind: 'add', a: x, b: y, out: output(), ...strides });
    const inPlace = twin.floats(size, dtype, { isWritten: true, offset: 2 });
    twin.run('binary', { kind: 'add', a: inPlace, b: y, out: inPlace, ...strides });
  }
}

function gated(twin: Twin, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const cols = 65;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const size = rows * cols;
    const packed = twin.floats(2 * size, dtype, { offset: 1 });
    const dy = twin.floats(size, dtype, { offset: 3 });
    const halves = {
      kind: 'silu' as const,
      gate: twin.slice(packed, 0, 2 * size - cols),
      up: twin.slice(packed, cols, 2 * size - cols),
      rows,
      cols,
      row: 2 * cols,
    };
    twin.run('gated', { ...halves, out: twin.output(size, dtype, { offset: 2 }) });
    const out = twin.output(2 * size, dtype, { offset: 2 });
    twin.run('gatedBackward', { ...halves, of: 'both', dy, out });
  }
}

function rotary(twin: Twin, limitBytes: number): void {
  const [heads, numRotated, half] = [3, 2, 7];
  const row = heads * 2 * half;
  const tokens = Math.ceil(numBeyond(limitBytes, 'f32') / row);
  const words = Array.from({ length: 2 * half }, () => twin.random.bits());
  const frequencies = twin.values(words, 'u32');
  const call = { frequencies, tokens, heads, numRotated, half, isInverse: false };
  for (const dtype of FLOATS) {
    const x = twin.floats(tokens * row, dtype, { offset: 1 });
    const out = twin.output(tokens * row, dtype, { offset: 2 });
    twin.run('rotary', { ...call, x, out, positions: undefined, period: 11, offset: 5 });
  }
}

function castAndDropout(twin: Twin, limitBytes: number): void {
  for (const [from, to] of [
    ['f32', 'f16'],
    ['bf16', 'f32'],
    ['f16', 'bf16'],
  ] as const) {
    const size = numBeyond(limitBytes, 'f16');
    const x = twin.floats(size, from, { low: 0.5, high: 2, offset: 1 });
    twin.run('cast', { x, out: twin.output(size, to, { offset: 2, tolerance: 'exact' }) });
    const key = { p: 0.5, key0: 3, key1: 4, counterOffset: 2 ** 34 - 101 };
    twin.run('dropout', { x, out: twin.output(size, to, { offset: 2 }), ...key });
    const drawn = twin.output(size, to, { offset: 2, tolerance: 'exact' });
    const recipe = { kind: 'uniform' as const, scale: 2 ** -24, first: 0, range: 0 };
    twin.run('random', { ...recipe, out: drawn, key0: 5, key1: 6, counterOffset: 2 ** 34 - 101 });
  }
}

/** Spans with gaps between them, several to a view; the last one is a view's. */
function normNodes(twin: Twin, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const size = numBeyond(limitBytes, dtype);
    const x = twin.floats(size, dtype, { offset: 1 });
    const length = Math.floor(limitBytes / 3 / byteSize(dtype));
    const spans = Array.from({ length: Math.floor(size / length) }, (_, i) => {
      return { start: i * length, length: length - 3 };
    });
    const out = twin.output(spans.length, 'f32');
    twin.run('normNodes', { x, out, spans, power: 2 });
    const last = [{ start: size - length, length }];
    twin.run('normNodes', { x, out: twin.output(1, 'f32'), spans: last, power: Infinity });
  }
}

/** Segments that cross the borders of views, lie inside one, and leave gaps. */
function optimizers(twin: Twin, limitBytes: number): void {
  const size = numBeyond(limitBytes, 'f32');
  const half = Math.floor(size / 2);
  const segments = [
    { start: 1, length: 3, group: 1 },
    { start: 7, length: half - 7, group: 0 },
    { start: half + 2, length: size - half - 3, group: 1 },
  ];
  const state = (low: number) => twin.floats(size, 'f32', { isWritten: true, low });
  for (const gradType of FLOATS) {
    const grad = twin.floats(size, gradType, { offset: 1 });
    const adam = { beta1: 0.9, beta2: 0.99, eps: 1e-8, biasCorrection1: 0.2, biasCorrection2: 0.1 };
    const adamGroups = [
      { ...adam, lr: 0.1, weightDecay: 0.1, decoupled: true },
      { ...adam, lr: 0.2, weightDecay: 0, decoupled: false },
    ];
    const moments = { expAvg: state(-1), expAvgSq: state(0.5) };
    const common = { grad, gradScale: undefined, segments };
    twin.run('adam', { ...common, param: state(-1), ...moments, groups: adamGroups });
    const sgd = { lr: 0.1, dampening: 0, weightDecay: 0.1, nesterov: true, isFirstStep: false };
    const sgdGroups = [
      { ...sgd, momentum: 0.9 },
      { ...sgd, momentum: 0 },
    ];
    const buffers = { param: state(-1), momentumBuffer: state(-1) };
    twin.run('sgd', { ...common, ...buffers, groups: sgdGroups });
  }
}

function embedding(twin: Twin, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const cols = 9;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const count = 17;
    const extent = { rows, cols, count };
    const list = Array.from({ length: count }, (_, i) =>
      Math.floor((i * (rows - 1)) / (count - 1)),
    );
    list[3] = rows;
    list[5] = list[4]!;
    const ids = twin.values(list, 'u32');
    const table = twin.floats(rows * cols, dtype, { offset: 1 });
    twin.run('embedding', { ...extent, table, ids, out: twin.output(count * cols, dtype) });
    const dy = twin.floats(count * cols, dtype);
    const dTable = twin.output(rows * cols, dtype, { offset: 2 });
    twin.run('embeddingBackward', { ...extent, ids, dy, dTable });
  }
}

/** More tokens than a view has gradients of, ids that come up again in each part of them. */
function embeddingOfMany(twin: Twin, limitBytes: number): void {
  const [rows, cols] = [23, 17];
  for (const dtype of WIDTHS) {
    const count = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const list = Array.from({ length: count }, (_, i) => (i * 7 + ((i * i) % 11)) % (rows + 1));
    list[9] = 2 ** 32 - 1;
    const [ids, extent] = [twin.values(list, 'u32'), { rows, cols, count }];
    const table = twin.floats(rows * cols, dtype, { offset: 1 });
    const out = twin.output(count * cols, dtype, { offset: 2 });
    twin.run('embedding', { ...extent, table, ids, out });
    const dy = twin.floats(count * cols, dtype, { offset: 1 });
    const dTable = twin.output(rows * cols, dtype, { offset: 2 });
    twin.run('embeddingBackward', { ...extent, ids, dy, dTable });
  }
}

/** Rows of an even and of an odd length. */
function rowsBeyond(limitBytes: number, dtype: DType, lengths = [60, 61]) {
  return lengths.map((cols) => ({ rows: Math.ceil(numBeyond(limitBytes, dtype) / cols), cols }));
}

function softmax(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    for (const { rows, cols } of rowsBeyond(limitBytes, dtype)) {
      const size = rows * cols;
      const call = { rows, cols, scale: 0.5, isLog: false };
      const x = twin.floats(size, dtype, { offset: 1, low: -2, high: 2 });
      const out = () => twin.output(size, dtype, { offset: 2 });
      twin.run('softmax', { ...call, x, out: out(), causalRows: 7 });
      const dy = twin.floats(size, dtype, { offset: 3 });
      twin.run('softmaxBackward', { ...call, y: x, dy, out: out() });
    }
  }
}

function layerNorm(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    // Short rows, of which a view has whole parts of a parameter's gradient.
    for (const { rows, cols } of rowsBeyond(limitBytes, dtype, [2, 3])) {
      const of = () => twin.floats(rows * cols, dtype, { offset: 1 });
      const to = () => twin.output(rows * cols, dtype, { offset: 2 });
      const perRow = () => twin.output(rows, 'f32', { offset: 1 });
      const [weight, bias] = [twin.floats(cols, 'f32'), twin.floats(cols, dtype)];
      const found = { mean: perRow(), rstd: perRow() };
      const sums = { residual: of(), sum: to() };
      const extent = { rows, cols };
      twin.run('layerNorm', {
        ...extent,
        ...found,
        ...sums,
        x: of(),
        weight,
        bias,
        out: to(),
        eps: 1e-5,
      });
      const given = { ...extent, x: of(), dy: of(), mean: twin.floats(rows, 'f32') };
      const rstd = twin.floats(rows, 'f32', { low: 0.5, high: 2 });
      twin.run('layerNormBackward', { ...given, rstd, weight, dSum: of(), dx: to() });
      const [dWeight, dBias] = [twin.output(cols, 'f32'), twin.output(cols, dtype)];
      twin.run('layerNormParamGrad', { ...given, rstd, dWeight, dBias });
    }
  }
}

function rmsNorm(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    // Short rows, of which a view has whole parts of a parameter's gradient.
    for (const { rows, cols } of rowsBeyond(limitBytes, dtype, [2, 3])) {
      const of = () => twin.floats(rows * cols, dtype, { offset: 1 });
      const to = () => twin.output(rows * cols, dtype, { offset: 2 });
      const shared = { rows, cols, weight: twin.floats(cols, 'f32'), weightOffset: 1 };
      const sums = { residual: of(), sum: to() };
      const rstd = twin.output(rows, 'f32', { offset: 1 });
      twin.run('rmsNorm', { ...shared, ...sums, x: of(), out: to(), rstd, eps: 1e-6 });
      const given = { x: of(), dy: of(), rstd: twin.floats(rows, 'f32', { low: 0.5, high: 2 }) };
      const [dx, dWeight] = [to(), twin.output(cols, 'f32')];
      twin.run('rmsNormBackward', { ...shared, ...given, dSum: of(), dx, dWeight });
    }
  }
}

/** Outer lines beyond a view. */
function reduceMany(twin: Twin, limitBytes: number): void {
  reductions(twin, limitBytes, (size) => ({ outer: Math.ceil(size / 35), dim: 5, inner: 7 }));
}

/** One line beyond a view, in one row and in several. */
function reduceLong(twin: Twin, limitBytes: number): void {
  reductions(twin, limitBytes, (size) => ({ outer: 2, dim: size, inner: 1 }));
  reductions(twin, limitBytes, (size) => ({ outer: 1, dim: Math.ceil(size / 129), inner: 129 }));
}

function reductions(
  twin: Twin,
  limitBytes: number,
  extentOf: (size: number) => { outer: number; dim: number; inner: number },
): void {
  for (const dtype of WIDTHS) {
    const extent = extentOf(numBeyond(limitBytes, dtype));
    const { outer, dim, inner } = extent;
    const x = twin.floats(outer * dim * inner, dtype, { offset: 1 });
    const line = () => twin.output(outer * inner, dtype, { offset: 2 });
    twin.run('reduce', { ...extent, kind: 'mean', x, out: line() });
    const most = line();
    twin.run('reduce', { ...extent, kind: 'max', x, out: most });
    const dy = twin.floats(outer * inner, dtype);
    const out = twin.output(outer * dim * inner, dtype, { offset: 2 });
    twin.run('extremumBackward', { ...extent, x, y: most, dy, out });
  }
}

function broadcast(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const cols = 30;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const size = rows * cols;
    const out = () => twin.output(size, dtype, { offset: 2 });
    const [a, row] = [twin.floats(size, dtype, { offset: 1 }), twin.floats(cols, 'f32')];
    const byRow = { shape: [rows, cols], aStrides: [cols, 1], bStrides: [0, 1] };
    twin.run('binary', { ...byRow, kind: 'mul', a, b: row, out: out() });
    const inPlace = twin.floats(size, dtype, { isWritten: true, offset: 2 });
    twin.run('binary', { ...byRow, kind: 'add', a: inPlace, b: row, out: inPlace });
    const flags = twin.output(size, 'u32');
    twin.run('compare', { ...byRow, kind: 'lt', a, b: row, out: flags });
    // One of the first axis is beyond a view.
    const column = twin.floats(rows, dtype);
    const byColumn = { shape: [2, rows / 2, cols], aStrides: [size / 2, cols, 1] };
    const whole = rows % 2 === 0 ? byColumn : { shape: [1, rows, cols], aStrides: [size, cols, 1] };
    const ofColumn = [whole.shape[1]!, 1, 0];
    const condition = twin.values(
      Array.from({ length: size }, (_, i) => i % 3),
      'i32',
    );
    twin.run('where', {
      ...whole,
      condition,
      a,
      b: column,
      out: out(),
      conditionStrides: whole.aStrides,
      bStrides: ofColumn,
    });
  }
}

/** A transpose, of which no part of rows is a part of rows, one inside out's rows, and one of odd rows. */
function copies(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const cols = 34;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols / 2) * 2;
    const x = twin.anyBits(rows * cols, dtype, { offset: 1 });
    const from = { x, xOffset: 0 };
    twin.run('copyStrided', {
      ...from,
      out: twin.output(rows * cols, dtype, { offset: 2 }),
      shape: [cols, rows],
      xStrides: [1, cols],
      outOffset: 0,
      outStrides: [rows, 1],
    });
    twin.run('copyStrided', {
      ...from,
      out: twin.floats(rows * (cols + 6), dtype, { offset: 2, isWritten: true }),
      shape: [rows, cols],
      xStrides: [cols, 1],
      outOffset: 4,
      outStrides: [cols + 6, 1],
    });
    twin.run('copyStrided', {
      ...from,
      out: twin.output(rows * (cols - 1), dtype, { offset: 2 }),
      shape: [rows, cols - 1],
      xStrides: [cols, 1],
      xOffset: 1,
      outOffset: 0,
      outStrides: [cols - 1, 1],
    });
  }
}

/** Lines beyond a view, by many outer ones and as one. */
function gather(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const size = numBeyond(limitBytes, dtype);
    for (const [outer, dim, inner, count] of [
      [Math.ceil(size / 33), 11, 3, 7],
      [2, Math.ceil(size / 3), 3, Math.ceil(size / 6) * 2 + 1],
    ] as const) {
      const extent = { outer, dim, inner, count };
      const list = Array.from(
        { length: outer * count * inner },
        (_, i) => (i * 31 + ((i * i) % 7)) % (dim + 1),
      );
      const ids = twin.values(list, 'i32');
      const x = twin.floats(outer * dim * inner, dtype, { offset: 1 });
      const out = twin.output(outer * count * inner, dtype, { offset: 2 });
      twin.run('gather', { ...extent, x, ids, out });
      const dy = twin.floats(outer * count * inner, dtype);
      const dx = twin.output(outer * dim * inner, dtype, { offset: 2 });
      twin.run('gatherBackward', { ...extent, ids, dy, dx });
    }
  }
}

/** Equal values in all parts of a line, and more results than the last part has elements. */
function topK(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const size = numBeyond(limitBytes, dtype);
    for (const [outer, dim, inner, count] of [
      [Math.ceil(size / 33), 11, 3, 7],
      [2, Math.ceil(size / 3), 3, 5],
      [1, size, 1, 9],
    ] as const) {
      const extent = { outer, dim, inner, count };
      const values = Array.from(
        { length: outer * dim * inner },
        (_, i) => (i * 31 + ((i * i) % 7)) % 59,
      );
      values[1] = Number.NaN;
      const x = twin.values(values, dtype, { offset: 1 });
      twin.run('topK', { ...extent, x, out: twin.output(outer * count * inner, 'i32') });
    }
  }
}

function cumSum(twin: Twin, limitBytes: number): void {
  for (const dtype of [...WIDTHS, 'i32'] as const) {
    const size = numBeyond(limitBytes, dtype);
    for (const [outer, dim, inner] of [
      [Math.ceil(size / 33), 11, 3],
      [2, Math.ceil(size / 3), 3],
      [1, size, 1],
    ] as const) {
      const length = outer * dim * inner;
      for (const isReverse of [false, true]) {
        const x =
          dtype === 'i32'
            ? twin.anyBits(length, dtype, { offset: 1 })
            : twin.floats(length, dtype, { offset: 1 });
        const out = twin.output(length, dtype, { offset: 2 });
        twin.run('cumSum', { x, out, outer, dim, inner, isReverse });
      }
    }
  }
}

function crossEntropy(twin: Twin, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const cols = 61;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const extent = { rows, cols };
    const logits = twin.floats(rows * cols, dtype, { low: -4, high: 4, offset: 1 });
    const ids = Array.from({ length: rows }, (_, i) => (i * 7) % (cols + 1));
    const targets = twin.values(ids, 'i32');
    const [loss, lse] = [twin.output(rows, 'f32'), twin.output(rows, 'f32')];
    twin.run('crossEntropy', { ...extent, logits, targets, loss, lse });
    const dLoss = twin.floats(rows, 'f32');
    const out = twin.output(rows * cols, dtype, { offset: 2 });
    twin.run('crossEntropyBackward', { ...extent, logits, targets, lse, dLoss, out });
  }
}

/** Batches that share a mask or a part of it, so that its gradient is summed over several views. */
function attention(twin: Twin, limitBytes: number): void {
  const [queries, keys, dim] = [7, 9, 16];
  const batch = Math.ceil(numBeyond(limitBytes, 'f32') / (queries * dim));
  for (const mask of ['full', 'rows', 'columns'] as const) {
    runAttention(twin, { batch, queries, keys, dim }, { mask, dtype: 'f32' });
  }
}

/** All three matrices beyond the limit, rows and columns many, the sum short. */
function matmulWide(twin: Twin, limitBytes: number): void {
  const k = 18;
  const side = Math.ceil((2.5 * limitBytes) / 4 / k / 2) * 2;
  for (const dtype of FLOATS) {
    for (const [m, n] of [
      [side, 50],
      [50, side],
    ] as const) {
      matmulAll(twin, dtype, { m, n, k });
    }
  }
}

/** Sums over windows of k; two rows of an operand, which a product needs at once, just fit a view. */
function matmulLong(twin: Twin, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const k = Math.floor((0.45 * limitBytes) / byteSize(dtype));
    matmulAll(twin, dtype, { m: 6, n: 6, k });
  }
}

function matmulAll(twin: Twin, dtype: DType, extent: { m: number; n: number; k: number }): void {
  const { m, n, k } = extent;
  const scale = { low: -2 / Math.sqrt(k), high: 2 / Math.sqrt(k) };
  for (const [transposeA, transposeB] of [
    [false, false],
    [false, true],
    [true, false],
  ] as const) {
    for (const accumulate of [false, true]) {
      twin.run('matmul', {
        ...extent,
        a: twin.floats(m * k, dtype, { offset: 1 }),
        b: twin.floats(n * k, dtype, { offset: 3, ...scale }),
        out: twin.floats(m * n, dtype, { isWritten: true, offset: 2 }),
        bias: accumulate ? undefined : twin.floats(n, dtype, { offset: 1 }),
        transposeA,
        transposeB,
        aRow: transposeA ? m : k,
        bRow: transposeB ? k : n,
        outRow: n,
        batch: [1, 1],
        aBatch: [0, 0],
        bBatch: [0, 0],
        outBatch: [0, 0],
        alpha: 0.5,
        accumulate,
      });
    }
  }
}

/** Batches of heads, more than bind at once, and one whose own matrices don't. */
function matmulBatches(twin: Twin, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const elements = limitBytes / byteSize(dtype);
    for (const [outer, inner, m] of [
      [4, 3, Math.floor(elements / 5 / 20)],
      [2, 2, Math.floor(elements / 20 / 2) * 2 + 30],
    ] as const) {
      const [n, k] = [18, 20];
      twin.run('matmul', {
        m,
        n,
        k,
        a: twin.floats(outer * inner * m * k, dtype, { offset: 1 }),
        b: twin.floats(inner * n * k, dtype, { offset: 3 }),
        out: twin.output(outer * inner * m * n, dtype, { offset: 2 }),
        bias: undefined,
        transposeA: false,
        transposeB: true,
        aRow: k,
        bRow: k,
        outRow: n,
        batch: [outer, inner],
        aBatch: [inner * m * k, m * k],
        bBatch: [0, n * k],
        outBatch: [inner * m * n, m * n],
        alpha: 0.5,
        accumulate: false,
      });
    }
  }
}
