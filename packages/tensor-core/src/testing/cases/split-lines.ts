// Cases of kernels along an axis on operands larger than a view, which have many lines, or lines
// that are larger than a view themselves.

import type { CallRecorder } from '../kit/call-recorder.js';
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

/** Takes more outer indices than fit a view. */
function reduceMany(calls: CallRecorder, limitBytes: number): void {
  reductions(calls, limitBytes, (size) => ({ outer: Math.ceil(size / 35), dim: 5, inner: 7 }));
}

/** Takes lines longer than a view, first with one column and then with 129. */
function reduceLong(calls: CallRecorder, limitBytes: number): void {
  reductions(calls, limitBytes, (size) => ({ outer: 2, dim: size, inner: 1 }));
  reductions(calls, limitBytes, (size) => ({ outer: 1, dim: Math.ceil(size / 129), inner: 129 }));
}

function reductions(
  calls: CallRecorder,
  limitBytes: number,
  extentOf: (size: number) => { outer: number; dim: number; inner: number },
): void {
  for (const dtype of WIDTHS) {
    const extent = extentOf(numBeyond(limitBytes, dtype));
    const { outer, dim, inner } = extent;
    const x = calls.floats(outer * dim * inner, dtype, { offset: 1 });
    const line = () => calls.output(outer * inner, dtype, { offset: 2 });
    calls.run('reduce', { ...extent, kind: 'mean', x, out: line() });
    const most = line();
    calls.run('reduce', { ...extent, kind: 'max', x, out: most });
    const dy = calls.floats(outer * inner, dtype);
    const out = calls.output(outer * dim * inner, dtype, { offset: 2 });
    calls.run('extremumBackward', { ...extent, x, y: most, dy, out });
  }
}

/** Takes more outer indices than fit a view, and then lines longer than a view. */
function gather(calls: CallRecorder, limitBytes: number): void {
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
      const ids = calls.values(list, 'i32');
      const x = calls.floats(outer * dim * inner, dtype, { offset: 1 });
      const out = calls.output(outer * count * inner, dtype, { offset: 2 });
      calls.run('gather', { ...extent, x, ids, out });
      const dy = calls.floats(outer * count * inner, dtype);
      const dx = calls.output(outer * dim * inner, dtype, { offset: 2 });
      calls.run('gatherBackward', { ...extent, ids, dy, dx });
    }
  }
}

/** Takes lines with equal values in all parts, and more results than the last part has elements. */
function topK(calls: CallRecorder, limitBytes: number): void {
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
      const x = calls.values(values, dtype, { offset: 1 });
      calls.run('topK', { ...extent, x, out: calls.output(outer * count * inner, 'i32') });
    }
  }
}

function cumSum(calls: CallRecorder, limitBytes: number): void {
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
            ? calls.anyBits(length, dtype, { offset: 1 })
            : calls.floats(length, dtype, { offset: 1 });
        const out = calls.output(length, dtype, { offset: 2 });
        calls.run('cumSum', { x, out, outer, dim, inner, isReverse });
      }
    }
  }
}
