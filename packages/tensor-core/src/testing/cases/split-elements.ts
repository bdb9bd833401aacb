// Cases of kernels that take elements one by one, or walk through strides, on operands larger than
// a view.

import { byteSize } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import { FLOATS } from '../kit/sizes.js';
import { numBeyond, type Split, WIDTHS } from './split-extent.js';

export function elementSplits(): Split[] {
  return [
    { title: 'elementwise kernels', tolerance: 'transcendental', body: elementwise },
    { title: 'cast and dropout', tolerance: 'arithmetic', body: castAndDropout },
    { title: 'gated', tolerance: 'transcendental', body: gated },
    { title: 'rotary', tolerance: 'transcendental', body: rotary },
    { title: 'normNodes', tolerance: 'sum', body: normNodes },
    { title: 'optimizers', tolerance: 'transcendental', body: optimizers },
    { title: 'operands through strides', tolerance: 'arithmetic', body: broadcast },
    { title: 'copies through strides', tolerance: 'exact', body: copies },
  ];
}

function elementwise(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const size = numBeyond(limitBytes, dtype);
    const x = calls.floats(size, dtype, { offset: 1 });
    const y = calls.floats(size, dtype, { offset: 3 });
    const output = () => calls.output(size, dtype, { offset: 2 });
    calls.run('fill', { out: output(), value: 1.5 });
    calls.run('unary', { kind: 'tanh', x, out: output() });
    calls.run('unaryBackward', { kind: 'tanh', x, dy: y, out: output() });
    calls.run('affine', { x, out: output(), scale: 2, shift: 1 });
    const strides = { shape: [size], aStrides: [1], bStrides: [1] };
    calls.run('binary', { kind: 'add', a: x, b: y, out: output(), ...strides });
    const inPlace = calls.floats(size, dtype, { isWritten: true, offset: 2 });
    calls.run('binary', { kind: 'add', a: inPlace, b: y, out: inPlace, ...strides });
  }
}

function gated(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const cols = 65;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const size = rows * cols;
    const packed = calls.floats(2 * size, dtype, { offset: 1 });
    const dy = calls.floats(size, dtype, { offset: 3 });
    const halves = {
      kind: 'silu' as const,
      gate: calls.slice(packed, 0, 2 * size - cols),
      up: calls.slice(packed, cols, 2 * size - cols),
      rows,
      cols,
      row: 2 * cols,
    };
    calls.run('gated', { ...halves, out: calls.output(size, dtype, { offset: 2 }) });
    const out = calls.output(2 * size, dtype, { offset: 2 });
    calls.run('gatedBackward', { ...halves, of: 'both', dy, out });
  }
}

function rotary(calls: CallRecorder, limitBytes: number): void {
  const [heads, numRotated, half] = [3, 2, 7];
  const row = heads * 2 * half;
  const tokens = Math.ceil(numBeyond(limitBytes, 'f32') / row);
  const words = Array.from({ length: 2 * half }, () => calls.random.bits());
  const frequencies = calls.values(words, 'u32');
  const call = { frequencies, tokens, heads, numRotated, half, isInverse: false };
  for (const dtype of FLOATS) {
    const x = calls.floats(tokens * row, dtype, { offset: 1 });
    const out = calls.output(tokens * row, dtype, { offset: 2 });
    calls.run('rotary', { ...call, x, out, positions: undefined, period: 11, offset: 5 });
  }
}

function castAndDropout(calls: CallRecorder, limitBytes: number): void {
  for (const [from, to] of [
    ['f32', 'f16'],
    ['bf16', 'f32'],
    ['f16', 'bf16'],
  ] as const) {
    const size = numBeyond(limitBytes, 'f16');
    const x = calls.floats(size, from, { low: 0.5, high: 2, offset: 1 });
    calls.run('cast', { x, out: calls.output(size, to, { offset: 2, tolerance: 'exact' }) });
    const key = { p: 0.5, key0: 3, key1: 4, counterOffset: 2 ** 34 - 101 };
    calls.run('dropout', { x, out: calls.output(size, to, { offset: 2 }), ...key });
    const drawn = calls.output(size, to, { offset: 2, tolerance: 'exact' });
    const recipe = { kind: 'uniform' as const, scale: 2 ** -24, first: 0, range: 0 };
    calls.run('random', { ...recipe, out: drawn, key0: 5, key1: 6, counterOffset: 2 ** 34 - 101 });
  }
}

/** Takes spans with gaps between them, about three to a view. */
function normNodes(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const size = numBeyond(limitBytes, dtype);
    const x = calls.floats(size, dtype, { offset: 1 });
    const length = Math.floor(limitBytes / 3 / byteSize(dtype));
    const spans = Array.from({ length: Math.floor(size / length) }, (_, i) => {
      return { start: i * length, length: length - 3 };
    });
    const out = calls.output(spans.length, 'f32');
    calls.run('normNodes', { x, out, spans, power: 2 });
    const last = [{ start: size - length, length }];
    calls.run('normNodes', { x, out: calls.output(1, 'f32'), spans: last, power: Infinity });
  }
}

/** Takes segments that cross the borders of views, that lie inside one, and that leave gaps. */
function optimizers(calls: CallRecorder, limitBytes: number): void {
  const size = numBeyond(limitBytes, 'f32');
  const half = Math.floor(size / 2);
  const segments = [
    { start: 1, length: 3, group: 1 },
    { start: 7, length: half - 7, group: 0 },
    { start: half + 2, length: size - half - 3, group: 1 },
  ];
  const state = (low: number) => calls.floats(size, 'f32', { isWritten: true, low });
  for (const gradType of FLOATS) {
    const grad = calls.floats(size, gradType, { offset: 1 });
    const adam = { beta1: 0.9, beta2: 0.99, eps: 1e-8, biasCorrection1: 0.2, biasCorrection2: 0.1 };
    const adamGroups = [
      { ...adam, lr: 0.1, weightDecay: 0.1, decoupled: true },
      { ...adam, lr: 0.2, weightDecay: 0, decoupled: false },
    ];
    const moments = { expAvg: state(-1), expAvgSq: state(0.5) };
    const common = { grad, gradScale: undefined, segments };
    calls.run('adam', { ...common, param: state(-1), ...moments, groups: adamGroups });
    const sgd = { lr: 0.1, dampening: 0, weightDecay: 0.1, nesterov: true, isFirstStep: false };
    const sgdGroups = [
      { ...sgd, momentum: 0.9 },
      { ...sgd, momentum: 0 },
    ];
    const buffers = { param: state(-1), momentumBuffer: state(-1) };
    calls.run('sgd', { ...common, ...buffers, groups: sgdGroups });
  }
}

function broadcast(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const cols = 30;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const size = rows * cols;
    const out = () => calls.output(size, dtype, { offset: 2 });
    const [a, row] = [calls.floats(size, dtype, { offset: 1 }), calls.floats(cols, 'f32')];
    const byRow = { shape: [rows, cols], aStrides: [cols, 1], bStrides: [0, 1] };
    calls.run('binary', { ...byRow, kind: 'mul', a, b: row, out: out() });
    const inPlace = calls.floats(size, dtype, { isWritten: true, offset: 2 });
    calls.run('binary', { ...byRow, kind: 'add', a: inPlace, b: row, out: inPlace });
    const flags = calls.output(size, 'u32');
    calls.run('compare', { ...byRow, kind: 'lt', a, b: row, out: flags });
    // A single index of the first axis spans more than a view.
    const column = calls.floats(rows, dtype);
    const byColumn = { shape: [2, rows / 2, cols], aStrides: [size / 2, cols, 1] };
    const whole = rows % 2 === 0 ? byColumn : { shape: [1, rows, cols], aStrides: [size, cols, 1] };
    const ofColumn = [whole.shape[1]!, 1, 0];
    const condition = calls.values(
      Array.from({ length: size }, (_, i) => i % 3),
      'i32',
    );
    calls.run('where', {
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

/**
 * Copies a transpose, whose rows come from all rows of x, then into a part of out's rows, and then
 * with rows of odd length.
 */
function copies(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const cols = 34;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols / 2) * 2;
    const x = calls.anyBits(rows * cols, dtype, { offset: 1 });
    const from = { x, xOffset: 0 };
    calls.run('copyStrided', {
      ...from,
      out: calls.output(rows * cols, dtype, { offset: 2 }),
      shape: [cols, rows],
      xStrides: [1, cols],
      outOffset: 0,
      outStrides: [rows, 1],
    });
    calls.run('copyStrided', {
      ...from,
      out: calls.floats(rows * (cols + 6), dtype, { offset: 2, isWritten: true }),
      shape: [rows, cols],
      xStrides: [cols, 1],
      outOffset: 4,
      outStrides: [cols + 6, 1],
    });
    calls.run('copyStrided', {
      ...from,
      out: calls.output(rows * (cols - 1), dtype, { offset: 2 }),
      shape: [rows, cols - 1],
      xStrides: [cols, 1],
      xOffset: 1,
      outOffset: 0,
      outStrides: [cols - 1, 1],
    });
  }
}
