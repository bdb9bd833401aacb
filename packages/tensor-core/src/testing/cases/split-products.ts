// Cases of products and attention on operands larger than a view.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import { FLOATS } from '../kit/sizes.js';
import { runAttention } from './attention.js';
import { numBeyond, type Split, WIDTHS } from './split-extent.js';

export function productSplits(): Split[] {
  return [
    { title: 'matmul with many rows and columns', tolerance: 'sum', body: matmulWide },
    { title: 'matmul with long sums', tolerance: 'sum', body: matmulLong },
    { title: 'matmul with batches', tolerance: 'sum', body: matmulBatches },
    { title: 'attention', tolerance: 'transcendental', body: attention },
  ];
}

/** Takes batches that share a mask or part of it, whose gradient is summed over several views. */
function attention(calls: CallRecorder, limitBytes: number): void {
  const [queries, keys, dim] = [7, 9, 16];
  const batch = Math.ceil(numBeyond(limitBytes, 'f32') / (queries * dim));
  for (const mask of ['full', 'rows', 'columns'] as const) {
    runAttention(calls, { batch, queries, keys, dim }, { mask, dtype: 'f32' });
  }
}

/** Takes many rows or many columns, and a short sum. */
function matmulWide(calls: CallRecorder, limitBytes: number): void {
  const k = 18;
  const side = Math.ceil((2.5 * limitBytes) / 4 / k / 2) * 2;
  for (const dtype of FLOATS) {
    for (const [m, n] of [
      [side, 50],
      [50, side],
    ] as const) {
      matmulAll(calls, dtype, { m, n, k });
    }
  }
}

/**
 * Sums over windows of k. Two rows of an operand, which a product needs at once, just fit a view.
 */
function matmulLong(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of FLOATS) {
    const k = Math.floor((0.45 * limitBytes) / byteSize(dtype));
    matmulAll(calls, dtype, { m: 6, n: 6, k });
  }
}

function matmulAll(
  calls: CallRecorder,
  dtype: DType,
  extent: { m: number; n: number; k: number },
): void {
  const { m, n, k } = extent;
  const scale = { low: -2 / Math.sqrt(k), high: 2 / Math.sqrt(k) };
  for (const [transposeA, transposeB] of [
    [false, false],
    [false, true],
    [true, false],
  ] as const) {
    for (const accumulate of [false, true]) {
      calls.run('matmul', {
        ...extent,
        a: calls.floats(m * k, dtype, { offset: 1 }),
        b: calls.floats(n * k, dtype, { offset: 3, ...scale }),
        out: calls.floats(m * n, dtype, { isWritten: true, offset: 2 }),
        bias: accumulate ? undefined : calls.floats(n, dtype, { offset: 1 }),
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

/** Takes more batches than bind at once, and then batches of which not even one binds. */
function matmulBatches(calls: CallRecorder, limitBytes: number): void {
  for (const dtype of WIDTHS) {
    const elements = limitBytes / byteSize(dtype);
    for (const [outer, inner, m] of [
      [4, 3, Math.floor(elements / 5 / 20)],
      [2, 2, Math.floor(elements / 20 / 2) * 2 + 30],
    ] as const) {
      const [n, k] = [18, 20];
      calls.run('matmul', {
        m,
        n,
        k,
        a: calls.floats(outer * inner * m * k, dtype, { offset: 1 }),
        b: calls.floats(inner * n * k, dtype, { offset: 3 }),
        out: calls.output(outer * inner * m * n, dtype, { offset: 2 }),
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
