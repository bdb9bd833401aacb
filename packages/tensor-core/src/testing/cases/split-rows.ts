// Cases of kernels over rows, and over tables, on operands larger than a view.

import type { DType } from '@shardweave/dtypes';
import { blocksByteLength } from '@shardweave/dtypes/blocks';
import type { CallRecorder } from '../kit/call-recorder.js';
import { FLOATS } from '../kit/sizes.js';
import { blocksOf, encodedBlocks } from './blocks.js';
import { runNorm, runNormBackward } from './row-norm.js';
import { numBeyond, type Split, WIDTHS } from './split-extent.js';

export function rowSplits(): Split[] {
  return [
    { title: 'embedding', tolerance: 'sum', body: embedding },
    { title: 'embedding of many tokens', tolerance: 'sum', body: embeddingOfMany },
    { title: 'decodeBlocks', tolerance: 'exact', body: blocks },
    { title: 'blockDots', tolerance: 'sum', body: blockDots },
    { title: 'softmax', tolerance: 'sum', body: softmax },
    { title: 'layerNorm', tolerance: 'sum', body: (calls, limit) => norm(calls, limit, true) },
    { title: 'rmsNorm', tolerance: 'sum', body: (calls, limit) => norm(calls, limit, false) },
    { title: 'crossEntropy', tolerance: 'sum', body: crossEntropy },
  ];
}

function embedding(calls: CallRecorder, limitBytes: number): void {
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
    const ids = calls.values(list, 'u32');
    const table = calls.floats(rows * cols, dtype, { offset: 1 });
    calls.run('embedding', { ...extent, table, ids, out: calls.output(count * cols, dtype) });
    const dy = calls.floats(count * cols, dtype);
    const dTable = calls.output(rows * cols, dtype, { offset: 2 });
    calls.run('embeddingBackward', { ...extent, ids, dy, dTable });
  }
}

/** Takes more tokens than fit a view. Their ids come up again in each part of the tokens. */
function embeddingOfMany(calls: CallRecorder, limitBytes: number): void {
  const [rows, cols] = [23, 17];
  for (const dtype of WIDTHS) {
    const count = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const list = Array.from({ length: count }, (_, i) => (i * 7 + ((i * i) % 11)) % (rows + 1));
    list[9] = 2 ** 32 - 1;
    const [ids, extent] = [calls.values(list, 'u32'), { rows, cols, count }];
    const table = calls.floats(rows * cols, dtype, { offset: 1 });
    const out = calls.output(count * cols, dtype, { offset: 2 });
    calls.run('embedding', { ...extent, table, ids, out });
    const dy = calls.floats(count * cols, dtype, { offset: 1 });
    const dTable = calls.output(rows * cols, dtype, { offset: 2 });
    calls.run('embeddingBackward', { ...extent, ids, dy, dTable });
  }
}

/** Takes rows, in order and by ids, of a matrix larger than a view. Odd rows begin in a word. */
function blocks(calls: CallRecorder, limitBytes: number): void {
  const [type, width] = ['q8_0', 32] as const;
  const rows = Math.ceil((limitBytes * 2.5) / blocksByteLength(type, width));
  const words = blocksOf(calls, type, rows);
  const matrix = { words, type, rows, width, firstColumn: 0, columns: width };
  const out = calls.output((rows - 3) * width, 'bf16');
  calls.run('decodeBlocks', { ...matrix, ids: undefined, firstRow: 3, count: rows - 3, out });
  const list = [rows - 1, 0, rows, rows >> 1, 1, 2 ** 32 - 1];
  const ids = calls.values(list, 'u32');
  const taken = calls.output(list.length * width, 'f32');
  calls.run('decodeBlocks', { ...matrix, ids, firstRow: 0, count: list.length, out: taken });
}

/** Multiplies two rows with those of a matrix larger than a view. */
function blockDots(calls: CallRecorder, limitBytes: number): void {
  const [type, m, k] = ['q8_0', 2, 32] as const;
  const n = Math.ceil((limitBytes * 2.5) / blocksByteLength(type, k));
  const words = encodedBlocks(calls, type, n * k);
  const a = calls.floats(m * k, 'f32');
  const bias = calls.floats(n, 'bf16', { offset: 1 });
  const out = calls.output(m * n, 'bf16');
  calls.run('blockDots', { type, m, n, k, words, a, bias, out, quantizesRows: false });
}

/** Returns shapes larger than a view, with rows of an even and of an odd length. */
function rowsBeyond(limitBytes: number, dtype: DType, lengths = [60, 61]) {
  return lengths.map((cols) => ({ rows: Math.ceil(numBeyond(limitBytes, dtype) / cols), cols }));
}

function softmax(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    for (const { rows, cols } of rowsBeyond(limitBytes, dtype)) {
      const size = rows * cols;
      const call = { rows, cols, scale: 0.5, isLog: false };
      const x = calls.floats(size, dtype, { offset: 1, low: -2, high: 2 });
      const out = () => calls.output(size, dtype, { offset: 2 });
      calls.run('softmax', { ...call, x, out: out(), causalRows: 7 });
      const dy = calls.floats(size, dtype, { offset: 3 });
      calls.run('softmaxBackward', { ...call, y: x, dy, out: out() });
    }
  }
}

function norm(calls: CallRecorder, limitBytes: number, isCentered: boolean): void {
  for (const dtype of WIDTHS) {
    // Short rows, of which a view has whole parts of a parameter's gradient.
    for (const { rows, cols } of rowsBeyond(limitBytes, dtype, [2, 3])) {
      const of = () => calls.floats(rows * cols, dtype, { offset: 1 });
      const to = () => calls.output(rows * cols, dtype, { offset: 2 });
      const call = { rows, cols, weight: calls.floats(cols, 'f32'), weightOffset: 1 };
      const bias = isCentered ? calls.floats(cols, dtype) : undefined;
      const sums = { residual: of(), sum: to() };
      runNorm(calls, isCentered, { ...call, ...sums, x: of(), bias, out: to(), eps: 1e-5 });
      const dBias = isCentered ? calls.output(cols, dtype) : undefined;
      const gradients = { dx: to(), dWeight: calls.output(cols, 'f32'), dBias };
      const given = { x: of(), dy: of(), dSum: of() };
      runNormBackward(calls, isCentered, { ...call, ...given, ...gradients });
    }
  }
}

function crossEntropy(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const cols = 61;
    const rows = Math.ceil(numBeyond(limitBytes, dtype) / cols);
    const extent = { rows, cols };
    const logits = calls.floats(rows * cols, dtype, { low: -4, high: 4, offset: 1 });
    const ids = Array.from({ length: rows }, (_, i) => (i * 7) % (cols + 1));
    const targets = calls.values(ids, 'i32');
    const [loss, lse] = [calls.output(rows, 'f32'), calls.output(rows, 'f32')];
    calls.run('crossEntropy', { ...extent, logits, targets, loss, lse });
    const dLoss = calls.floats(rows, 'f32');
    const out = calls.output(rows * cols, dtype, { offset: 2 });
    calls.run('crossEntropyBackward', { ...extent, logits, targets, lse, dLoss, out });
  }
}
