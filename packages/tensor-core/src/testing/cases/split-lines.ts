// Kernels along an axis on operands larger than a view: many lines, and lines that are larger
// themselves.

import type { Twin } from '../twin.js';
import { numBeyond, type Split, WIDTHS } from './split-extent.js';

export function lineSplits(): Split[] {
  return [
    { title: 'reductions of many lines', tolerance: 'sum', body: reduceMany },
    { title: 'reductions of long lines', tolerance: 'sum', body: reduceLong },
    { title: 'gather', tolerance: 'sum', body: gather },
    { title: 'topK', tolerance: 'exact', body: topK },
    { title: 'cumSum', tolerance: 'sum', body: cumSum },
  ];
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
