// Kernels over rows of the reference device (softmax, layer norm, embedding, cross-entropy,
// dropout) are compared with values worked out by hand or by a formula of the test's own.

import { beforeEach, describe, expect, test } from 'vitest';
import { philox } from '../src/backends/reference/dropout.js';
import { referenceViews } from './support/reference-views.js';

const { device, f32, i32, empty, values, expectClose } = referenceViews();
let backend: ReturnType<typeof device>;
beforeEach(() => {
  backend = device();
});

describe('softmax', () => {
  const LN2 = Math.log(2);

  test('softmax of logarithms gives ratios', async () => {
    const out = empty(3);
    const call = { x: f32([0, LN2 / 2, LN2]), out, rows: 1, cols: 3, scale: 2, causalRows: 0 };
    backend.run('softmax', { ...call, isLog: false }); // The weights are 1, 2 and 4.
    await expectClose(out, [1 / 7, 2 / 7, 4 / 7]);
    backend.run('softmax', { ...call, isLog: true });
    await expectClose(out, [Math.log(1 / 7), Math.log(2 / 7), Math.log(4 / 7)]);
  });

  test('causal rows see a prefix, aligned to the last column', async () => {
    const out = empty(12);
    const call = { x: f32(new Array(12).fill(1)), out, rows: 4, cols: 3, scale: 1 };
    backend.run('softmax', { ...call, isLog: false, causalRows: 2 });
    const third = 1 / 3;
    const head = [0.5, 0.5, 0, third, third, third];
    await expectClose(out, [...head, ...head]);
    backend.run('softmax', { ...call, isLog: true, causalRows: 2 });
    const lowest = Number.NEGATIVE_INFINITY;
    const logHead = [-LN2, -LN2, lowest, -Math.log(3), -Math.log(3), -Math.log(3)];
    await expectClose(out, [...logHead, ...logHead]);
  });

  test('gradients follow the Jacobian', async () => {
    const out = empty(2);
    // With y = [1/4, 3/4] and dy = [1, 0], dx0 = y0 (1 - y0) and dx1 = -y0 y1, times the scale 2.
    const call = { dy: f32([1, 0]), out, rows: 1, cols: 2, scale: 2 };
    backend.run('softmaxBackward', { ...call, y: f32([0.25, 0.75]), isLog: false });
    await expectClose(out, [0.375, -0.375]);
    const y = f32([Math.log(0.25), Math.log(0.75)]);
    backend.run('softmaxBackward', { ...call, y, isLog: true });
    await expectClose(out, [1.5, -1.5]);
  });
});

describe('layer norm', () => {
  const shape = { isCentered: true, rows: 2, cols: 2 } as const;

  test('normalizes rows', async () => {
    // Row [1, 3] has mean 2 and variance 1, row [0, 0] has mean 0 and variance 0.
    const [out, mean, rstd] = [empty(4), empty(2), empty(2)];
    const call = { ...shape, x: f32([1, 3, 0, 0]), out, mean, rstd, eps: 0.25 };
    const s = 1 / Math.sqrt(1.25);
    backend.run('rowNorm', { ...call, weight: f32([2, 10]), bias: f32([5, 6]) });
    await expectClose(out, [5 - 2 * s, 6 + 10 * s, 5, 6]);
    await expectClose(mean, [2, 0]);
    await expectClose(rstd, [s, 2]);
    backend.run('rowNorm', { ...call, weight: undefined, bias: undefined });
    await expectClose(out, [-s, s, 0, 0]);
  });

  test('dx equals central differences of the row formula', async () => {
    const x = [0.5, -1, 2, 0.25, 3, -2];
    const weight = [1, 2, -1];
    const dy = [1, -0.5, 0.25, 2, 1, -1];
    const eps = 0.1;
    const loss = (at: readonly number[]) => {
      let total = 0;
      for (let r = 0; r < 2; r++) {
        const row = at.slice(3 * r, 3 * r + 3);
        const mean = (row[0]! + row[1]! + row[2]!) / 3;
        const variance = row.reduce((sum, v) => sum + (v - mean) * (v - mean), 0) / 3;
        row.forEach((v, j) => {
          total += (dy[3 * r + j]! * weight[j]! * (v - mean)) / Math.sqrt(variance + eps);
        });
      }
      return total;
    };
    const h = 1e-5;
    const expected = x.map((_, i) => {
      const moved = (by: number) => loss(x.map((v, j) => (i === j ? v + by : v)));
      return (moved(h) - moved(-h)) / (2 * h);
    });
    const [mean, rstd, out, dx] = [empty(2), empty(2), empty(6), empty(6)];
    const common = { ...shape, x: f32(x), weight: f32(weight), mean, rstd, cols: 3 };
    backend.run('rowNorm', { ...common, bias: undefined, out, eps });
    backend.run('rowNormBackward', { ...common, dy: f32(dy), dx });
    await expectClose(dx, expected);
  });

  test('parameter gradients sum over rows', async () => {
    const [dWeight, dBias] = [empty(2), empty(2)];
    // Here xhat = (x - mean) * rstd = [[-2, 2], [-1, 3]].
    const call = { x: f32([1, 3, 0, 4]), mean: f32([2, 1]), rstd: f32([2, 1]), ...shape };
    const dy = f32([1, 2, 3, 4]);
    backend.run('rowNormBackward', { ...call, weight: undefined, dy, dWeight, dBias });
    await expectClose(dWeight, [-5, 16]);
    await expectClose(dBias, [4, 6]);
  });
});

describe('embedding and cross-entropy', () => {
  test('embedding picks rows, zeros outside', async () => {
    const out = empty(6);
    const table = f32([1, 2, 3, 4]);
    backend.run('embedding', { table, ids: i32([1, -1, 0]), out, rows: 2, cols: 2, count: 3 });
    expect(await values(out)).toEqual([3, 4, 0, 0, 1, 2]);
  });

  test('the gradient of embedding adds up repeated ids and zeroes the rest', async () => {
    const dTable = empty(6);
    const call = { ids: i32([2, 0, 2, 3]), dy: f32([1, 2, 3, 4, 5, 6, 7, 8]), dTable };
    backend.run('embeddingBackward', { ...call, rows: 3, cols: 2, count: 4 });
    expect(await values(dTable)).toEqual([3, 4, 0, 0, 6, 8]);
  });

  test('cross-entropy of known odds, and its gradient', async () => {
    const logits = f32([0, Math.log(3), 5, 5]);
    const targets = i32([1, -100]);
    const [loss, lse, out] = [empty(2), empty(2), empty(4)];
    const shape = { rows: 2, cols: 2 };
    backend.run('crossEntropy', { logits, targets, loss, lse, ...shape });
    await expectClose(loss, [Math.log(4 / 3), 0]);
    await expectClose(lse, [Math.log(4), 5 + Math.log(2)]);
    const dLoss = f32([2, 2]);
    backend.run('crossEntropyBackward', { logits, targets, lse, dLoss, out, ...shape });
    await expectClose(out, [0.5, -0.5, 0, 0]);
  });
});

describe('dropout', () => {
  test('Philox gives the known answers that Random123 publishes', () => {
    const hex = (words: readonly number[]) => words.map((word) => word.toString(16));
    expect(hex(philox([0, 0, 0, 0], [0, 0]))).toEqual([
      '6627e8d5',
      'e169c58d',
      'bc57ac4c',
      '9b00dbd8',
    ]);
    const ones = 0xffffffff;
    expect(hex(philox([ones, ones, ones, ones], [ones, ones]))).toEqual([
      '408f276d',
      '41c83b0e',
      'a20bc7c6',
      '6d5451fd',
    ]);
    const piDigits = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344] as const;
    expect(hex(philox(piDigits, [0xa4093822, 0x299f31d0]))).toEqual([
      'd16cfe09',
      '94fdcceb',
      '5001e420',
      '24126ea1',
    ]);
  });

  test('keeps words at or above the threshold, scaled', async () => {
    // The words of counter 0 over 2^32 are 0.399, 0.881, 0.736 and 0.605. Element 4 would use
    // counter 1.
    const out = empty(4);
    const x = f32([1, 1, 1, 1]);
    backend.run('dropout', { x, out, p: 0.5, key0: 0, key1: 0, counterOffset: 0 });
    await expectClose(out, [0, 2, 2, 2]);
    const p = 0.75;
    backend.run('dropout', { x, out, p, key0: 0, key1: 0, counterOffset: 0 });
    await expectClose(out, [0, 4, 0, 0]);
    backend.run('dropout', { x: out, out, p: 0, key0: 0, key1: 0, counterOffset: 0 });
    await expectClose(out, [0, 4, 0, 0]);
  });

  test('the counter offset shifts the mask, beyond 2^32 blocks too', async () => {
    const x = f32(new Array<number>(8).fill(1));
    const [whole, part] = [empty(8), empty(5)];
    const key = { p: 0.5, key0: 7, key1: 9 };
    const start = 2 ** 34 - 4; // Block 2^32 begins at the fifth element.
    backend.run('dropout', { x, out: whole, ...key, counterOffset: start });
    backend.run('dropout', { x: { ...x, size: 5 }, out: part, ...key, counterOffset: start + 3 });
    const all = await values(whole);
    expect(await values(part)).toEqual(all.slice(3));
    const high = philox([0, 1, 0, 0], [7, 9]).map((word) => (word >= 2 ** 31 ? 2 : 0));
    expect(all.slice(4)).toEqual(high);
  });
});
