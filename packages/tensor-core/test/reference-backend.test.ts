// Products, optimizers and the queue of the reference device are compared with values worked out by
// hand, so that the specification of the kernels rests on something other than itself.

import { f16ToF32, f32ToBf16, f32ToF16 } from '@shardweave/dtypes';
import type { View } from '@shardweave/tensor-core';
import { beforeEach, describe, expect, test } from 'vitest';
import { referenceViews } from './support/reference-views.js';

const { device, f32, empty, values, expectClose } = referenceViews();
let backend: ReturnType<typeof device>;
beforeEach(() => {
  backend = device();
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

  test('operands may be plain or transposed', async () => {
    const out = empty(4);
    backend.run('matmul', { ...call, a: f32(A), b: f32(B), out });
    expect(await values(out)).toEqual(PRODUCT);
    const flipped = { transposeA: true, transposeB: true, aRow: 2, bRow: 3 };
    backend.run('matmul', { ...call, ...flipped, a: f32(A_T), b: f32(B_T), out });
    expect(await values(out)).toEqual(PRODUCT);
  });

  test('alpha, bias and accumulation enter a product', async () => {
    const out = f32([100, 100, 100, 100]);
    const more = { alpha: 2, bias: f32([0.5, 0.25]), accumulate: true };
    backend.run('matmul', { ...call, ...more, a: f32(A), b: f32(B), out });
    expect(await values(out)).toEqual([98.5, 114.25, 98.5, 132.25]);
  });

  test('two batch axes may be broadcast and interleaved', async () => {
    // a is [2, 1, 1, 1] and b is [1, 2, 1, 1]. The output is stored with the inner axis first:
    // out[inner, outer].
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
    // This is 1 * (1 - 0.1 * 0.5) -/+ 0.1. The third element is in no segment.
    await expectClose(param, [0.85, 1.05, 1]);
    await expectClose(expAvg, [0.2, -0.1, 0]);
    await expectClose(expAvgSq, [0.04, 0.01, 0]);
  });

  test('Adam puts the decay into the gradient', async () => {
    const param = f32([1]);
    const [expAvg, expAvgSq] = [f32([0]), f32([0])];
    const common = { param, expAvg, expAvgSq, gradScale: undefined };
    const segments = [{ start: 0, length: 1, group: 0 }];
    const groups = [{ ...first, eps: 0.5, decoupled: false }];
    // The gradient becomes 0.5 + 0.5 * 1.
    backend.run('adam', { ...common, grad: f32([0.5]), groups, segments });
    await expectClose(expAvg, [0.1]);
    await expectClose(expAvgSq, [0.01]);
    await expectClose(param, [1 - 0.1 / 1.5]);
  });

  test('SGD with momentum, dampening and Nesterov over two steps', async () => {
    const param = f32([1]);
    const momentumBuffer = f32([9]); // The first step must overwrite this value.
    const settings = { lr: 0.1, momentum: 0.5, dampening: 0.25, weightDecay: 0, nesterov: true };
    const segments = [{ start: 0, length: 1, group: 0 }];
    const step = (isFirstStep: boolean) => {
      const groups = [{ ...settings, isFirstStep }];
      const call = { param, grad: f32([2]), momentumBuffer, gradScale: undefined };
      backend.run('sgd', { ...call, groups, segments });
    };
    step(true); // The buffer is 2 and the step is 2 + 0.5 * 2 = 3.
    await expectClose(momentumBuffer, [2]);
    await expectClose(param, [0.7]);
    step(false); // The buffer is 0.5 * 2 + 0.75 * 2 = 2.5 and the step is 2 + 1.25.
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
