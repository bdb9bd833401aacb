// Cases with more rows and batches than the 65,535 workgroups that a grid may have in one
// dimension, and with long sums. Operands take up to half a megabyte, which the device's views must
// hold.

import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { manyNormCases } from './norm.js';

/** A count above WebGPU's limit, for which the second row of the grid is partly filled. */
const BEYOND_GRID = 65_601;

export function manyCases(): ConformanceCase[] {
  return [
    rowsCase(),
    batchesCase(),
    longSumCase(),
    manyPartsCase(),
    spansCase(),
    ...manyNormCases(),
  ];
}

function rowsCase(): ConformanceCase {
  return recordedCase('softmax of 65,601 rows', 'transcendental', (calls) => {
    const extent = { rows: BEYOND_GRID, cols: 2, scale: 1, isLog: false };
    const x = calls.floats(2 * BEYOND_GRID, 'f32');
    calls.run('softmax', {
      x,
      out: calls.output(2 * BEYOND_GRID, 'f32'),
      ...extent,
      causalRows: 0,
    });
  });
}

function batchesCase(): ConformanceCase {
  return recordedCase('matmul of 65,601 batches', 'arithmetic', (calls) => {
    const size = 2 * BEYOND_GRID;
    calls.run('matmul', {
      a: calls.floats(BEYOND_GRID, 'f32'),
      b: calls.floats(size, 'f32'),
      out: calls.output(size, 'f32'),
      bias: undefined,
      m: 1,
      n: 2,
      k: 1,
      transposeA: false,
      transposeB: false,
      aRow: 1,
      bRow: 2,
      outRow: 2,
      batch: [3, BEYOND_GRID / 3],
      aBatch: [BEYOND_GRID / 3, 1],
      bBatch: [(2 * BEYOND_GRID) / 3, 2],
      outBatch: [(2 * BEYOND_GRID) / 3, 2],
      alpha: 1,
      accumulate: false,
    });
  });
}

/** Sums 100,003 terms of one sign, in one line, in columns, and as a norm. */
function longSumCase(): ConformanceCase {
  return recordedCase('reduce and normNodes of 100,003 terms', 'longSum', (calls) => {
    const size = 100_003;
    const x = calls.floats(size, 'f32', { low: 0 });
    const whole = { outer: 1, dim: size, inner: 1 };
    for (const kind of ['sum', 'mean'] as const) {
      calls.run('reduce', { kind, x, out: calls.output(1, 'f32'), ...whole });
    }
    const columns = { outer: 1, dim: 33_334, inner: 3 };
    const part = calls.slice(x, 0, 100_002);
    calls.run('reduce', { kind: 'sum', x: part, out: calls.output(3, 'f32'), ...columns });
    const out = calls.output(4, 'f32');
    calls.run('normNodes', { x, out, spans: [{ start: 0, length: size }], power: 2 });
  });
}

/** Sums gradients of a norm's parameters over 69 parts of 16 rows, more than share a column. */
function manyPartsCase(): ConformanceCase {
  return recordedCase('rowNormBackward of 1,100 rows', 'sum', (calls) => {
    const [rows, cols] = [1100, 24];
    calls.run('rowNormBackward', {
      isCentered: true,
      rows,
      cols,
      x: calls.floats(rows * cols, 'f32'),
      weight: calls.floats(cols, 'f32'),
      mean: calls.floats(rows, 'f32'),
      rstd: calls.floats(rows, 'f32', { low: 0.5, high: 1 }),
      dy: calls.floats(rows * cols, 'f32'),
      dSum: undefined,
      dx: calls.output(rows * cols, 'f32'),
      dWeight: calls.output(cols, 'f32'),
      dBias: calls.output(cols, 'f32'),
    });
  });
}

/** Takes more nodes, and more results of trees, than a grid has workgroups in one dimension. */
function spansCase(): ConformanceCase {
  return recordedCase('normNodes and normTree of 65,601 spans', 'sum', (calls) => {
    const spans = Array.from({ length: BEYOND_GRID }, (_, start) => ({ start, length: 1 }));
    const x = calls.floats(BEYOND_GRID, 'f32');
    const output = () => calls.output(BEYOND_GRID, 'f32');
    calls.run('normNodes', { x, out: output(), spans, power: 2 });
    calls.run('normTree', { x, out: output(), spans, isMax: false });
  });
}
