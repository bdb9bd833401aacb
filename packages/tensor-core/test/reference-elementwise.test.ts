// Elementwise kernels, copies and reductions of the reference device are compared with values
// worked out by hand.

import { beforeEach, describe, expect, test } from 'vitest';
import { referenceViews } from './support/reference-views.js';

const { device, f32, i32, empty, values, expectClose } = referenceViews();
let backend: ReturnType<typeof device>;
beforeEach(() => {
  backend = device();
});

describe('elementwise', () => {
  // Each row has [kind, x, f(x), f'(x)], from tables of the functions.
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
    ['sin', 1, 0.841470985, 0.540302306],
    ['cos', 1, 0.540302306, -0.841470985],
    // sigmoid(1) = 0.731058579. Added to its slope 0.196611933 times 1, it is the slope of silu.
    ['silu', 1, 0.731058579, 0.927670512],
    ['silu', -1, -0.268941421, 0.072329488],
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
    // In f16, 2049 lies halfway between 2048 and 2050, and 2051 halfway between 2050 and 2052.
    const f16 = empty(5, 'f16');
    backend.run('cast', { x: f32([1, 2049, 2051, 65520, 2 ** -24]), out: f16 });
    expect(await values(f16)).toEqual([0x3c00, 0x6800, 0x6802, 0x7c00, 0x0001]);
    // In bf16, 257 lies halfway between 256 and 258, and 259 halfway between 258 and 260.
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

  test('a norm is sums of blocks, a tree over them, and the factor that clips', async () => {
    const nodes = empty(2);
    const x = f32([3, -4, 12]);
    const spans = [
      { start: 0, length: 2 },
      { start: 2, length: 1 },
    ];
    backend.run('normNodes', { x, out: nodes, spans, power: 2 });
    await expectClose(nodes, [25, 144]);
    const [squares, norm, scale] = [empty(1), empty(1), empty(1)];
    const whole = [{ start: 0, length: 2 }];
    backend.run('normTree', { x: nodes, out: squares, spans: whole, isMax: false });
    backend.run('clipFactor', { squares, norm, scale, maxNorm: 0.5, unscale: 0.5 });
    await expectClose(norm, [6.5]);
    await expectClose(scale, [0.25 / 6.500001]);
    backend.run('normNodes', { x, out: nodes, spans, power: Infinity });
    await expectClose(nodes, [4, 12]);
  });
});
