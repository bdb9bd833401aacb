// Products and attention on operands larger than a view.

import { byteSize, type DType } from '@shardweave/dtypes';
import { FLOATS } from '../sizes.js';
import type { Twin } from '../twin.js';
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

/**
 * Sums over windows of k; two rows of an operand, which a product needs at once, just fit a view.
 */
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
