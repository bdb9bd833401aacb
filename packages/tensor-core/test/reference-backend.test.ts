// The reference device against values worked out by hand or by a formula of its own, so that the
// specification of the kernels rests on something other than itself.

import { f16ToF32, f32ToBf16, f32ToF16 } from '@shardweave/dtypes';
import type { Backend, View } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeEach, describe, expect, test } from 'vitest';
import { philox } from '../src/backends/reference/dropout.js';

let backend: Backend;
beforeEach(() => {
  backend = createReferenceBackend();
});

function f32(values: readonly number[]): View {
  return upload(Float32Array.from(values), 'f32');
}

function i32(values: readonly number[]): View {
  return upload(Int32Array.from(values), 'i32');
}

function upload(array: Float32Array | Int32Array, dtype: View['dtype']): View {
  const buffer = backend.alloc(array.byteLength, 'test');
  backend.write(buffer, 0, new Uint8Array(array.buffer));
  return { buffer, byteOffset: 0, dtype, size: array.length };
}

function empty(size: number, dtype: View['dtype'] = 'f32'): View {
  return { buffer: backend.alloc(size * 4, 'test'), byteOffset: 0, dtype, size };
}

async function values(view: View): Promise<number[]> {
  const bytes = await backend.read(view.buffer, 0, view.buffer.byteLength);
  const { size, dtype } = view;
  if (dtype === 'i32') return Array.from(new Int32Array(bytes.buffer, 0, size));
  if (dtype === 'u32') return Array.from(new Uint32Array(bytes.buffer, 0, size));
  if (dtype === 'f32') return Array.from(new Float32Array(bytes.buffer, 0, size));
  return Array.from(new Uint16Array(bytes.buffer, 0, size)); // raw bits
}

async function expectClose(view: View, expected: readonly number[]): Promise<void> {
  const got = await values(view);
  expect(got).toHaveLength(expected.length);
  got.forEach((value, i) => {
    if (Number.isFinite(expected[i]!)) expect(value).toBeCloseTo(expected[i]!, 6);
    else expect(value).toBe(expected[i]);
  });
}

describe('elementwise', () => {
  // [kind, x, f(x), f'(x)] from tables of the functions.
  test.each([
    ['neg', 2, -2, -1],
    ['abs', -3, 3, -1],
    ['abs', 0, 0, 0],
    ['exp', 1, Math.E, Math.E],
    ['log', 2, Math.LN2, 0.5],
    ['sqrt', 4, 2, 0.25],
    ['rsqrt', 4, 0.5, -0.0625],
    ['square', 3, 9, 6],
    ['reciprocal', 4, 0.25, -0.0625],
    ['tanh', 0.5, 0.462117157, 0.786447733],
    ['sigmoid', 1, 0.731058579, 0.196611933],
    ['relu', -1, 0, 0],
    ['relu', 0, 0, 0],
    ['relu', 2, 2, 1],
    // Phi(1) = 0.841344746, phi(1) = 0.241970725
    ['gelu', 1, 0.841344746, 1.083315471],
    ['gelu', -1, -0.158655254, -0.083315471],
    ['gelu', 9, 9, 1],
    // u = 0.7978845608 * 1.044715 = 0.833562; tanh u = 0.682384; du = 0.7978845608 * 1.134145
    ['geluTanh', 1, 0.8411919906, 1.0829640838],
  ] as const)('%s(%d) = %d with slope %d', async (kind, x, y, slope) => {
    const out = empty(1);
    backend.run('unary', { kind, x: f32([x]), out });
    await expectClose(out, [y]);
    backend.run('unaryBackward', { kind, x: f32([x]), dy: f32([2]), out });
    await expectClose(out, [2 * slope]);
  });

  test('affine scales and shifts', async () => {
    const out = empty(2);
    backend.run('affine', { x: f32([1, -2]), out, scale: 3, shift: 0.5 });
    await expectClose(out, [3.5, -5.5]);
  });

  test('binary broadcasts through strides', async () => {
    const a = f32([1, 2, 3]);
    const b = f32([10, 20]);
    const out = empty(6);
    const shape = [2, 3];
    const walk = { shape, aStrides: [0, 1], bStrides: [1, 0] };
    const expected = {
      add: [11, 12, 13, 21, 22, 23],
      sub: [-9, -8, -7, -19, -18, -17],
      mul: [10, 20, 30, 20, 40, 60],
      div: [0.1, 0.2, 0.3, 0.05, 0.1, 0.15],
      maximum: [10, 10, 10, 20, 20, 20],
      minimum: [1, 2, 3, 1, 2, 3],
      pow: [1, 1024, 59049, 1, 1048576, 3486784401],
    } as const;
    for (const kind of ['add', 'sub', 'mul', 'div', 'maximum', 'minimum'] as const) {
      backend.run('binary', { kind, a, b, out, ...walk });
      await expectClose(out, expected[kind]);
    }
    backend.run('binary', { kind: 'pow', a, b, out, ...walk });
    expect(await values(out)).toEqual(expected.pow.map(Math.fround));
  });

  test('integers wrap', async () => {
    const out = empty(2, 'i32');
    const call = { a: i32([2 ** 31 - 1, 65537]), b: i32([1, 65537]), out };
    const walk = { shape: [2], aStrides: [1], bStrides: [1] };
    backend.run('binary', { kind: 'add', ...call, ...walk });
    expect(await values(out)).toEqual([-(2 ** 31), 131074]);
    backend.run('binary', { kind: 'mul', ...call, ...walk });
    expect(await values(out)).toEqual([2 ** 31 - 1, 131073]);
  });
});

describe('cast, fill and copy', () => {
  test('fill converts to the dtype of out', async () => {
    const half = empty(3, 'f16');
    backend.run('fill', { out: half, value: 1.5 });
    expect(await values(half)).toEqual([0x3e00, 0x3e00, 0x3e00]);
    const whole = empty(1, 'i32');
    backend.run('fill', { out: whole, value: -7.9 });
    expect(await values(whole)).toEqual([-7]);
  });

  test('f32 to 16 bits rounds to nearest even', async () => {
    // f16: 2049 lies between 2048 and 2050, 2051 between 2050 and 2052: both ties.
    const f16 = empty(5, 'f16');
    backend.run('cast', { x: f32([1, 2049, 2051, 65520, 2 ** -24]), out: f16 });
    expect(await values(f16)).toEqual([0x3c00, 0x6800, 0x6802, 0x7c00, 0x0001]);
    // bf16: 257 lies between 256 and 258, 259 between 258 and 260: both ties.
    const bf16 = empty(4, 'bf16');
    backend.run('cast', { x: f32([1, 257, 259, 3.4e38]), out: bf16 });
    expect(await values(bf16)).toEqual([0x3f80, 0x4380, 0x4382, 0x7f80]);
  });

  test('float to integer truncates and saturates', async () => {
    const x = f32([1.9, -1.9, 3e9, -3e9, 5e9, Number.NaN]);
    const signed = empty(6, 'i32');
    backend.run('cast', { x, out: signed });
    expect(await values(signed)).toEqual([1, -1, 2 ** 31 - 1, -(2 ** 31), 2 ** 31 - 1, 0]);
    const unsigned = empty(6, 'u32');
    backend.run('cast', { x, out: unsigned });
    expect(await values(unsigned)).toEqual([1, 0, 3e9, 0, 2 ** 32 - 1, 0]);
  });

  test('integer to integer keeps the bits', async () => {
    const out = empty(1, 'u32');
    backend.run('cast', { x: i32([-1]), out });
    expect(await values(out)).toEqual([2 ** 32 - 1]);
  });

  test('copyStrided transposes into a slice', async () => {
    const out = f32([0, 0, 0, 0, 0, 0, 0, 0, 0]);
    backend.run('copyStrided', {
      x: f32([1, 2, 3, 4, 5, 6]), // [2, 3]
      out, // [3, 3], filled from column 1
      shape: [3, 2],
      xOffset: 0,
      xStrides: [1, 3],
      outOffset: 1,
      outStrides: [3, 1],
    });
    expect(await values(out)).toEqual([0, 1, 4, 0, 2, 5, 0, 3, 6]);
  });
});

describe('reductions', () => {
  const extent = { outer: 2, dim: 3, inner: 2 };
  // [2, 3, 2]
  const x = [1, 8, 5, 2, 5, 4, -1, 0, -7, 0, -3, 6];

  test.each([
    ['sum', [11, 14, -11, 6]],
    ['mean', [11 / 3, 14 / 3, -11 / 3, 2]],
    ['max', [5, 8, -1, 6]],
    ['min', [1, 2, -7, 0]],
  ] as const)('%s over the middle axis', async (kind, expected) => {
    const out = empty(4);
    backend.run('reduce', { kind, x: f32(x), out, ...extent });
    await expectClose(out, expected);
  });

  test('the gradient of max splits among ties', async () => {
    const out = empty(12);
    const call = { x: f32(x), y: f32([5, 8, -1, 6]), dy: f32([4, 1, 2, 3]), out };
    backend.run('extremumBackward', { ...call, ...extent });
    await expectClose(out, [0, 1, 2, 0, 2, 0, 2, 0, 0, 0, 0, 3]);
  });

  test('squaredNorm adds squares', async () => {
    const out = f32([100]);
    backend.run('squaredNorm', { x: f32([3, -4]), out, accumulate: true });
    await expectClose(out, [125]);
    backend.run('squaredNorm', { x: f32([3, -4]), out, accumulate: false });
    await expectClose(out, [25]);
  });
});

describe('softmax', () => {
  const LN2 = Math.log(2);

  test('of logarithms gives ratios', async () => {
    const out = empty(3);
    const call = { x: f32([0, LN2 / 2, LN2]), out, rows: 1, cols: 3, scale: 2, causalRows: 0 };
    backend.run('softmax', { ...call, isLog: false }); // weights 1, 2, 4
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
    // y = [1/4, 3/4], dy = [1, 0]: dx0 = y0 (1 - y0), dx1 = -y0 y1, times the scale 2.
    const call = { dy: f32([1, 0]), out, rows: 1, cols: 2, scale: 2 };
    backend.run('softmaxBackward', { ...call, y: f32([0.25, 0.75]), isLog: false });
    await expectClose(out, [0.375, -0.375]);
    const y = f32([Math.log(0.25), Math.log(0.75)]);
    backend.run('softmaxBackward', { ...call, y, isLog: true });
    await expectClose(out, [1.5, -1.5]);
  });
});

describe('layer norm', () => {
  const shape = { rows: 2, cols: 2 };

  test('normalises rows', async () => {
    // Row [1, 3]: mean 2, variance 1. Row [0, 0]: mean 0, variance 0.
    const [out, mean, rstd] = [empty(4), empty(2), empty(2)];
    const call = { x: f32([1, 3, 0, 0]), out, mean, rstd, ...shape, eps: 0.25 };
    const s = 1 / Math.sqrt(1.25);
    backend.run('layerNorm', { ...call, weight: f32([2, 10]), bias: f32([5, 6]) });
    await expectClose(out, [5 - 2 * s, 6 + 10 * s, 5, 6]);
    await expectClose(mean, [2, 0]);
    await expectClose(rstd, [s, 2]);
    backend.run('layerNorm', { ...call, weight: undefined, bias: undefined });
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
    const common = { x: f32(x), weight: f32(weight), mean, rstd, rows: 2, cols: 3 };
    backend.run('layerNorm', { ...common, bias: undefined, out, eps });
    backend.run('layerNormBackward', { ...common, dy: f32(dy), dx });
    await expectClose(dx, expected);
  });

  test('parameter gradients sum over rows', async () => {
    const [dWeight, dBias] = [empty(2), empty(2)];
    // xhat = (x - mean) * rstd = [[-2, 2], [-1, 3]]
    const call = { x: f32([1, 3, 0, 4]), mean: f32([2, 1]), rstd: f32([2, 1]), ...shape };
    const dy = f32([1, 2, 3, 4]);
    backend.run('layerNormParamGrad', { ...call, dy, dWeight, dBias });
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

  test('its gradient adds up repeated ids and zeroes the rest', async () => {
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
    // Counter 0's words over 2^32: 0.399, 0.881, 0.736, 0.605; element 4 uses counter 1.
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
    const start = 2 ** 34 - 4; // block 2^32 begins at the fifth element
    backend.run('dropout', { x, out: whole, ...key, counterOffset: start });
    backend.run('dropout', { x: { ...x, size: 5 }, out: part, ...key, counterOffset: start + 3 });
    const all = await values(whole);
    expect(await values(part)).toEqual(all.slice(3));
    const high = philox([0, 1, 0, 0], [7, 9]).map((word) => (word >= 2 ** 31 ? 2 : 0));
    expect(all.slice(4)).toEqual(high);
  });
});

describe('matmul', () => {
  const call = {
    bias: undefined,
    m: 2,
    n: 2,
    k: 3,
    transposeA: false,
    transposeB: false,
    aRow: 3,
    bRow: 2,
    outRow: 2,
    batch: [1, 1],
    aBatch: [0, 0],
    bBatch: [0, 0],
    outBatch: [0, 0],
    alpha: 1,
    accumulate: false,
  } as const;
  const A = [1, 2, 3, 4, 5, 6]; // [2, 3]
  const A_T = [1, 4, 2, 5, 3, 6]; // [3, 2]
  const B = [1, 0, -1, 2, 0, 1]; // [3, 2]
  const B_T = [1, -1, 0, 0, 2, 1]; // [2, 3]
  const PRODUCT = [-1, 7, -1, 16];

  test('of plain and transposed operands', async () => {
    const out = empty(4);
    backend.run('matmul', { ...call, a: f32(A), b: f32(B), out });
    expect(await values(out)).toEqual(PRODUCT);
    const flipped = { transposeA: true, transposeB: true, aRow: 2, bRow: 3 };
    backend.run('matmul', { ...call, ...flipped, a: f32(A_T), b: f32(B_T), out });
    expect(await values(out)).toEqual(PRODUCT);
  });

  test('with alpha, bias and accumulation', async () => {
    const out = f32([100, 100, 100, 100]);
    const more = { alpha: 2, bias: f32([0.5, 0.25]), accumulate: true };
    backend.run('matmul', { ...call, ...more, a: f32(A), b: f32(B), out });
    expect(await values(out)).toEqual([98.5, 114.25, 98.5, 132.25]);
  });

  test('over two batch axes, broadcast and interleaved', async () => {
    // a [2, 1, 1, 1], b [1, 2, 1, 1]; out laid out inner-major: out[inner, outer].
    const out = empty(4);
    backend.run('matmul', {
      ...call,
      m: 1,
      n: 1,
      k: 1,
      a: f32([2, 3]),
      b: f32([10, 100]),
      out,
      batch: [2, 2],
      aBatch: [1, 0],
      bBatch: [0, 1],
      outBatch: [1, 2],
    });
    expect(await values(out)).toEqual([20, 30, 200, 300]);
  });
});

describe('optimizers', () => {
  const group = { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 0, weightDecay: 0.5 };
  const first = { ...group, biasCorrection1: 0.1, biasCorrection2: 0.01 };

  test('the first step of AdamW moves by lr against the sign, after decay', async () => {
    const param = f32([1, 1, 1]);
    const [expAvg, expAvgSq] = [f32([0, 0, 0]), f32([0, 0, 0])];
    backend.run('adam', {
      param,
      grad: f32([4, -2, 8]),
      expAvg,
      expAvgSq,
      gradScale: f32([0.5]),
      groups: [{ ...first, decoupled: true }],
      segments: [{ start: 0, length: 2, group: 0 }],
    });
    await expectClose(param, [0.85, 1.05, 1]); // 1 * (1 - 0.1 * 0.5) -/+ 0.1; the third is in no segment
    await expectClose(expAvg, [0.2, -0.1, 0]);
    await expectClose(expAvgSq, [0.04, 0.01, 0]);
  });

  test('Adam puts the decay into the gradient', async () => {
    const param = f32([1]);
    const [expAvg, expAvgSq] = [f32([0]), f32([0])];
    const common = { param, expAvg, expAvgSq, gradScale: undefined };
    const segments = [{ start: 0, length: 1, group: 0 }];
    const groups = [{ ...first, eps: 0.5, decoupled: false }];
    backend.run('adam', { ...common, grad: f32([0.5]), groups, segments }); // g = 0.5 + 0.5 * 1
    await expectClose(expAvg, [0.1]);
    await expectClose(expAvgSq, [0.01]);
    await expectClose(param, [1 - 0.1 / 1.5]);
  });

  test('SGD with momentum, dampening and Nesterov over two steps', async () => {
    const param = f32([1]);
    const momentumBuffer = f32([9]); // must be overwritten by the first step
    const settings = { lr: 0.1, momentum: 0.5, dampening: 0.25, weightDecay: 0, nesterov: true };
    const segments = [{ start: 0, length: 1, group: 0 }];
    const step = (isFirstStep: boolean) => {
      const groups = [{ ...settings, isFirstStep }];
      const call = { param, grad: f32([2]), momentumBuffer, gradScale: undefined };
      backend.run('sgd', { ...call, groups, segments });
    };
    step(true); // buffer 2, step 2 + 0.5 * 2 = 3
    await expectClose(momentumBuffer, [2]);
    await expectClose(param, [0.7]);
    step(false); // buffer 0.5 * 2 + 0.75 * 2 = 2.5, step 2 + 1.25
    await expectClose(momentumBuffer, [2.5]);
    await expectClose(param, [0.375]);
  });

  test('plain SGD decays and needs no buffer', async () => {
    const param = f32([2]);
    const settings = { lr: 0.5, momentum: 0, dampening: 0, weightDecay: 0.1, nesterov: false };
    backend.run('sgd', {
      param,
      grad: f32([1]),
      momentumBuffer: undefined,
      gradScale: undefined,
      groups: [{ ...settings, isFirstStep: true }],
      segments: [{ start: 0, length: 1, group: 0 }],
    });
    await expectClose(param, [1.4]);
  });
});

describe('16-bit storage', () => {
  test('kernels compute on the stored values and round once at the store', async () => {
    const x = backend.alloc(4, 'x');
    backend.write(x, 0, new Uint8Array(new Uint16Array([f32ToF16(0.1), 0]).buffer));
    const view = { buffer: x, byteOffset: 0, dtype: 'f16', size: 1 } as const;
    const out = empty(1, 'bf16');
    backend.run('affine', { x: view, out, scale: 3, shift: 0 });
    expect(await values(out)).toEqual([f32ToBf16(3 * f16ToF32(f32ToF16(0.1)))]);
  });
});

describe('the queue', () => {
  test('counts buffers, bytes and dispatches, and refuses freed buffers', async () => {
    const a = backend.alloc(8, 'a');
    const b = backend.alloc(4, 'b');
    expect(backend.usage()).toEqual({ bytes: 12, buffers: 2 });
    backend.run('fill', { out: { buffer: a, byteOffset: 0, dtype: 'f32', size: 2 }, value: 1 });
    expect(backend.dispatches).toBe(1);
    backend.free(a);
    backend.free(b);
    expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    await expect(backend.read(a, 0, 4)).rejects.toThrow(/freed/);
    expect(() => backend.free(a)).toThrow(/freed/);
    await backend.dispose();
    await expect(backend.sync()).rejects.toThrow(/disposed/);
  });
});

describe('the rules of the seam', () => {
  const half = (size: number, byteOffset = 0): View => ({
    buffer: backend.alloc(64, 'half'),
    byteOffset,
    dtype: 'f16',
    size,
  });
  const matmul = {
    bias: undefined,
    k: 2,
    transposeA: false,
    transposeB: false,
    aRow: 2,
    batch: [1, 1],
    aBatch: [0, 0],
    bBatch: [0, 0],
    outBatch: [0, 0],
    alpha: 1,
    accumulate: false,
  } as const;

  test('outputs start at whole words, inputs at whole elements', () => {
    const call = { kind: 'neg' } as const;
    backend.run('unary', { ...call, x: half(2, 2), out: half(2, 4) });
    expect(() => backend.run('unary', { ...call, x: half(2), out: half(2, 2) })).toThrow(
      /unary.out/,
    );
    expect(() => backend.run('unary', { ...call, x: half(2, 1), out: half(2) })).toThrow(/unary.x/);
  });

  test('views lie within their buffers', () => {
    expect(() => backend.run('fill', { out: half(33), value: 0 })).toThrow(/64 bytes/);
  });

  test('sizes are those of the call', () => {
    const call = { kind: 'neg', x: f32([1, 2, 3]), out: empty(2) } as const;
    expect(() => backend.run('unary', call)).toThrow('unary.x: expected 2 elements, got 3.');
  });

  test('outputs overlap inputs only exactly, and only in place', () => {
    const x = f32([1, 2, 3, 4]);
    const part = { ...x, size: 2 };
    const shifted = { ...x, byteOffset: 4, size: 2 };
    const apart = { ...x, byteOffset: 8, size: 2 };
    backend.run('affine', { x, out: x, scale: 1, shift: 0 });
    backend.run('affine', { x: part, out: apart, scale: 1, shift: 0 });
    backend.run('affine', { x: apart, out: part, scale: 1, shift: 0 });
    const overlapping = { x: part, out: shifted, scale: 1, shift: 0 };
    expect(() => backend.run('affine', overlapping)).toThrow(/expected out apart from x/);
    expect(() => backend.run('cast', { x, out: x })).toThrow(/expected out apart from x/);
  });

  test('a 16-bit product is dense or of whole words', () => {
    const operands = { a: half(4), b: half(6) };
    const odd = { ...matmul, ...operands, m: 2, n: 3, bRow: 3 };
    backend.run('matmul', { ...odd, out: half(6), outRow: 3 });
    expect(() => backend.run('matmul', { ...odd, out: half(7), outRow: 4 })).toThrow(/even n/);
    const even = { ...matmul, ...operands, m: 2, n: 2, bRow: 2 };
    backend.run('matmul', { ...even, out: half(6), outRow: 4 });
    expect(() => backend.run('matmul', { ...even, out: half(5), outRow: 3 })).toThrow(/even n/);
  });

  test('a 16-bit copy is dense or of whole words', () => {
    const call = { x: half(6), shape: [2, 2], xOffset: 0, xStrides: [2, 1] };
    backend.run('copyStrided', { ...call, out: half(8), outOffset: 2, outStrides: [4, 1] });
    const odd = { ...call, out: half(8), outOffset: 1, outStrides: [4, 1] };
    expect(() => backend.run('copyStrided', odd)).toThrow(/on words/);
    const across = { ...call, out: half(8), outOffset: 0, outStrides: [1, 2] };
    expect(() => backend.run('copyStrided', across)).toThrow(/on words/);
    const sparse = { ...call, out: half(8), outOffset: 0, outStrides: [4, 2] };
    expect(() => backend.run('copyStrided', sparse)).toThrow(/on words/);
  });
});
