// Misuse of the ops throws typed errors. A message names the op first, then what was expected and
// what came, with shapes or dtypes, and then a hint.

import * as core from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, test } from 'vitest';

const device = new core.Device(createReferenceBackend());
const other = new core.Device(createReferenceBackend());
const f = (...shape: number[]) => device.zeros(shape);
const i = (...shape: number[]) => device.zeros(shape, { dtype: 'i32' });
const h = (...shape: number[]) => device.zeros(shape, { dtype: 'f16' });
const theirs = (...shape: number[]) => other.zeros(shape);

/** Makes two batches of three rows, each with two heads of four columns. */
const heads = () => f(2, 3, 2, 4);
const wide = (dim: number): [core.Tensor, core.Tensor, core.Tensor] => [
  f(1, 2, 1, dim),
  f(1, 2, 1, dim),
  f(1, 2, 1, dim),
];
const attend = core.scaledDotProductAttention;
/** What plain JavaScript may pass as values. */
const values = (given: unknown) => given as number[];

type Row = readonly [call: () => unknown, code: core.TensorErrorCode, message: RegExp];

/** The calls that must throw, by the op that the message must begin with. */
const TABLE: Readonly<Record<string, readonly Row[]>> = {
  add: [
    [() => core.add(f(2, 3), f(4)), 'SHAPE', /\[2, 3\] and \[4\].*axis -1: 3 and 4.*equal or 1/],
    [() => core.add(f(2), i(2)), 'DTYPE', /f32 \[2\] and i32 \[2\].*Cast/],
    [() => core.add(i(2), 0.5), 'DTYPE', /whole number that i32 holds.*i32 \[2\], got 0.5. Cast/],
    [() => core.add(f(2), theirs(2)), 'SHAPE', /one device.*host/],
    [
      () => core.add(f(2, 1, 2, 1, 2, 1, 2), f(1, 2, 1, 2, 1, 2, 1)),
      'SHAPE',
      /at most 6 axes.*\[2, 1, 2, 1, 2, 1, 2\].*Reshape/,
    ],
  ],
  sub: [[() => core.sub(i(2), Number.NaN), 'DTYPE', /i32 \[2\], got NaN. Cast/]],
  mul: [[() => core.mul(i(2), 3e9), 'DTYPE', /i32 \[2\], got 3000000000. Cast/]],
  gt: [[() => core.gt(core.cast(i(2), 'u32'), -1), 'DTYPE', /u32 \[2\], got -1. Cast/]],
  div: [
    [() => core.div(i(2), i(2)), 'DTYPE', /float tensor.*i32 \[2\].*Cast/],
    [() => core.div(i(2), 2), 'DTYPE', /i32 \[2\].*Cast/],
  ],
  pow: [
    [() => core.pow(i(2), i(2)), 'DTYPE', /i32 \[2\].*Cast/],
    [() => core.pow(i(2), 2), 'DTYPE', /i32 \[2\].*Cast/],
  ],
  affine: [[() => core.affine(i(3), 2, 1), 'DTYPE', /i32 \[3\].*Cast/]],
  abs: [[() => core.abs(i(3)), 'DTYPE', /i32 \[3\].*Cast/]],
  activate: [
    [() => core.activate(f(3), 'swish' as never), 'OPTION', /'relu' or 'silu'.*got "swish"/],
  ],
  geluTanh: [[() => core.gelu(i(3), { approximate: 'tanh' }), 'DTYPE', /i32 \[3\].*Cast/]],
  maximum: [[() => core.maximum(f(2), f(3)), 'SHAPE', /\[2\] and \[3\].*equal or 1/]],
  matmul: [
    [() => core.matmul(f(2, 3), f(4, 5)), 'SHAPE', /\[2, 3\] x \[4, 5\].*transposeA/],
    [
      () => core.matmul(f(2, 3), f(3, 5), { transposeB: true }),
      'SHAPE',
      /\[2, 3\] x \[3, 5\]\^T.*transposeB/,
    ],
    [() => core.matmul(f(3), f(3, 5)), 'SHAPE', /\[3\] x \[3, 5\].*Reshape/],
    [() => core.matmul(f(2, 2, 3), f(3, 3, 5)), 'SHAPE', /\[2\] and \[3\].*equal or 1/],
    [() => core.matmul(f(2, 3), i(3, 5)), 'DTYPE', /i32 \[3, 5\].*Cast/],
    [() => core.matmul(f(2, 3), theirs(3, 5)), 'SHAPE', /one device.*host/],
  ],
  linear: [
    [() => core.linear(f(2, 3), { weight: f(4, 5) }), 'SHAPE', /x \[2, 3\], weight \[4, 5\]/],
    [
      () => core.linear(f(2, 3), { weight: f(3, 5), bias: f(3) }),
      'SHAPE',
      /bias \[5\], got .*bias \[3\]/,
    ],
    [() => core.linear(f(2, 3), { weight: f(1, 3, 5) }), 'SHAPE', /weight \[1, 3, 5\]/],
    [() => core.linear(f(2, 3), { weight: theirs(3, 5) }), 'SHAPE', /one device.*host/],
  ],
  sum: [
    [() => core.sum(f(2, 3), { axis: 2 }), 'SHAPE', /\[-2, 2\), got 2.*from the end/],
    [() => core.sum(f(), { axis: 0 }), 'SHAPE', /scalar and axis 0.*Reshape/],
    [() => core.sum(f(2, 3), { axis: 0.5 }), 'SHAPE', /got 0.5/],
    [() => core.sum(i(3)), 'DTYPE', /i32 \[3\].*Cast/],
  ],
  max: [[() => core.max(f(2, 0), { axis: 1 }), 'SHAPE', /\[2, 0\] over axes \[1\].*Nothing/]],
  softmax: [
    [() => core.softmax(f()), 'SHAPE', /shape \[\].*Reshape/],
    [() => core.softmax(i(3)), 'DTYPE', /i32 \[3\].*Cast/],
  ],
  logSoftmax: [[() => core.logSoftmax(f()), 'SHAPE', /shape \[\].*Reshape/]],
  layerNorm: [
    [
      () => core.layerNorm(f(2, 3), { weight: f(2) }),
      'SHAPE',
      /\[3\] \(x is \[2, 3\]\), got \[2\]/,
    ],
    [() => core.layerNorm(f(2, 3), { bias: f(1, 3) }), 'SHAPE', /got \[1, 3\]/],
    [() => core.layerNorm(f(2, 0)), 'SHAPE', /\[2, 0\].*normalizes/],
    [() => core.layerNorm(i(2, 3)), 'DTYPE', /i32 \[2, 3\].*Cast/],
    [() => core.layerNorm(f(2, 3), { weight: theirs(3) }), 'SHAPE', /one device.*host/],
  ],
  embedding: [
    [() => core.embedding(f(5), i(2)), 'SHAPE', /\[rows, cols\], got \[5\].*first/],
    [() => core.embedding(f(5, 2), f(2)), 'DTYPE', /integer ids.*f32 \[2\].*Cast/],
    [() => core.embedding(i(5, 2), i(2)), 'DTYPE', /i32 \[5, 2\].*Cast/],
  ],
  crossEntropy: [
    [() => core.crossEntropy(f(4, 5), i(3)), 'SHAPE', /logits \[4, 5\] and targets \[3\].*ids/],
    [
      () => core.crossEntropy(f(2, 3, 5), i(3, 2)),
      'SHAPE',
      /logits \[2, 3, 5\] and targets \[3, 2\]/,
    ],
    [() => core.crossEntropy(f(4, 5), f(4)), 'DTYPE', /f32 \[4\].*Cast/],
    [() => core.crossEntropy(f(), i()), 'SHAPE', /logits \[\] and targets \[\]/],
    [
      () => core.crossEntropy(f(4, 5), i(4), { weights: f(5) }),
      'SHAPE',
      /one weight per target, got targets \[4\] and weights \[5\]/,
    ],
    [() => core.crossEntropy(f(4, 5), i(4), { weights: i(4) }), 'DTYPE', /i32 \[4\].*Cast/],
    [() => core.crossEntropy(f(4, 5), i(4), { weights: theirs(4) }), 'SHAPE', /one device.*host/],
  ],
  rotaryEmbedding: [
    [() => core.rotaryEmbedding(f(1, 1, 2), {} as never), 'OPTION', /frequencies.*a tensor/],
  ],
  linearCrossEntropy: [
    [
      () => core.linearCrossEntropy(f(2, 3, 5), i(3, 2), { weight: f(7, 5) }),
      'SHAPE',
      /x \[2, 3, 5\], targets \[3, 2\]/,
    ],
  ],
  linearCrossEntropyPart: [
    [
      () => core.linearCrossEntropyPart(f(2, 5), i(2), { weight: f(7, 4) }),
      'SHAPE',
      /linearCrossEntropyPart: .* weight \[7, 4\]/,
    ],
  ],
  causalSelfAttention: [
    [
      () => core.causalSelfAttention(f(2, 3, 12), { numHeads: 5 }),
      'SHAPE',
      /3 \* 5 \* headDim.*\[2, 3, 12\]/,
    ],
    [() => core.causalSelfAttention(f(3, 12), { numHeads: 2 }), 'SHAPE', /\[3, 12\].*side by side/],
    [() => core.causalSelfAttention(f(2, 3, 12), { numHeads: 0 }), 'OPTION', /whole number.*got 0/],
  ],
  headsOf: [
    [() => core.headsOf(f(2, 3, 12), { numHeads: 5 }), 'SHAPE', /5 heads of 2\.4 columns/],
    [
      () => core.headsOf(f(2, 3, 12), { numHeads: 2, headDim: 4, start: 5 }),
      'SHAPE',
      /from column 5 on, got \[2, 3, 12\]/,
    ],
    [() => core.headsOf(f(3, 12), { numHeads: 2 }), 'SHAPE', /\[batch, seq, width\].*\[3, 12\]/],
  ],
  scaledDotProductAttention: [
    [() => attend(f(3, 4, 2), heads(), heads()), 'SHAPE', /\[3, 4, 2\]. headsOf/],
    [() => attend(heads(), heads(), f(2, 3, 1, 4)), 'SHAPE', /equal shapes.*v \[2, 3, 1, 4\]/],
    [() => attend(f(2, 3, 3, 4), heads(), heads()), 'SHAPE', /heads divide.*q \[2, 3, 3, 4\]/],
    [() => attend(f(2, 3, 2, 5), heads(), heads()), 'SHAPE', /head size.*q \[2, 3, 2, 5\]/],
    [() => attend(...wide(257)), 'SHAPE', /1 to 256 columns.*heads of 257/],
    [() => attend(h(1, 2, 1, 3), h(1, 2, 1, 3), h(1, 2, 1, 3)), 'SHAPE', /even.*f16 heads of 3/],
    [() => attend(heads(), h(2, 3, 2, 4), heads()), 'DTYPE', /f32, f16, f32/],
    [
      () => attend(heads(), heads(), heads(), { mask: f(3, 5) }),
      'SHAPE',
      /\[2, 2, 3, 3\].*got \[3, 5\]/,
    ],
    [
      () => attend(heads(), heads(), heads(), { segments: i(3) }),
      'SHAPE',
      /segments of shape \[2, 3\]/,
    ],
    [() => attend(heads(), heads(), heads(), { segments: f(2, 3) }), 'DTYPE', /integer ids/],
    [
      () => attend(heads(), heads(), heads(), { segments: i(2, 3), queryOffset: 1 }),
      'SHAPE',
      /3 from 1 on. Pass querySegments/,
    ],
    [
      () => attend(heads(), heads(), heads(), { querySegments: i(2, 3) }),
      'OPTION',
      /segments beside/,
    ],
    [() => attend(heads(), heads(), heads(), { dropout: 1 }), 'SHAPE', /0 <= p < 1, got 1/],
    [() => attend(heads(), heads(), heads(), { window: 0 }), 'OPTION', /window.*got 0/],
  ],
  dropout: [
    [() => core.dropout(f(3), 1), 'SHAPE', /0 <= p < 1, got 1 for \[3\].*dropped/],
    [() => core.dropout(f(3), Number.NaN), 'SHAPE', /got NaN/],
    [() => core.dropout(i(3), 0.5), 'DTYPE', /i32 \[3\].*Cast/],
  ],
  reshape: [
    [() => core.reshape(f(2, 3), [4]), 'SHAPE', /6 elements \(from \[2, 3\]\), got \[4\]/],
    [() => core.reshape(f(2, 3), [-1, -1]), 'SHAPE', /got \[-1, -1\].*one dimension/],
    [() => core.reshape(f(2, 3), [-2, -3]), 'SHAPE', /got \[-2, -3\]/],
    [() => core.reshape(f(2, 3), [-1, 4]), 'SHAPE', /got \[-1, 4\]/],
    [() => core.reshape(f(2, 3), [1.5, 4]), 'SHAPE', /got \[1\.5, 4\]/],
  ],
  transpose: [
    [() => core.transpose(f(2, 3), [0, 0]), 'SHAPE', /2 axes of \[2, 3\] once, got \[0, 0\]/],
    [() => core.transpose(f(2, 3), [0, 0, 1]), 'SHAPE', /got \[0, 0, 1\]/],
    [() => core.transpose(f(2, 3), [0]), 'SHAPE', /got \[0\]/],
    [() => core.transpose(f(2, 3), [0, 2]), 'SHAPE', /axis in \[-2, 2\), got 2/],
    [() => core.transpose(f(3)), 'SHAPE', /two axes, got \[3\].*Reshape/],
    [
      () => core.transpose(f(2, 2, 2, 2, 2, 2, 2), [6, 5, 4, 3, 2, 1, 0]),
      'SHAPE',
      /at most 6 axes.*got 7/,
    ],
  ],
  broadcastTo: [
    [() => core.broadcastTo(f(3), [2, 4]), 'SHAPE', /\[3\] and \[2, 4\]/],
    [() => core.broadcastTo(f(3, 2), [1, 2]), 'SHAPE', /\[3, 2\] broadcasts to, got \[1, 2\]/],
    [() => core.broadcastTo(f(1, 3), [3]), 'SHAPE', /\[1, 3\] broadcasts to, got \[3\]/],
  ],
  slice: [
    [
      () => core.slice(f(2, 3), { axis: 1, start: 1, end: 4 }),
      'SHAPE',
      /<= 3 \(axis 1 of \[2, 3\]\), got \[1, 4\)/,
    ],
    [() => core.slice(f(2, 3), { axis: 1, start: 2, end: 1 }), 'SHAPE', /got \[2, 1\)/],
    [() => core.slice(f(2, 3), { axis: 1, start: -1 }), 'SHAPE', /got \[-1, 3\)/],
    [() => core.slice(f(2, 3), { axis: 1, start: 0.5 }), 'SHAPE', /got \[0\.5, 3\)/],
  ],
  split: [
    [
      () => core.split(f(2, 3), { axis: 1, lengths: [1, 1] }),
      'SHAPE',
      /add up to 3 \(axis 1 of \[2, 3\]\), got \[1, 1\]/,
    ],
    [() => core.split(f(2, 3), { axis: 1, lengths: [-1, 4] }), 'SHAPE', /got \[-1, 4\]/],
  ],
  cat: [
    [() => core.cat([], { axis: 0 }), 'SHAPE', /at least one/],
    [
      () => core.cat([f(2, 3), f(2, 4)], { axis: 0 }),
      'SHAPE',
      /\[2, 3\] but for axis 0, got f32 \[2, 4\]/,
    ],
    [() => core.cat([f(2, 3), h(2, 3)], { axis: 0 }), 'SHAPE', /f32 \[2, 3\].*got f16 \[2, 3\]/],
    [() => core.cat([f(2, 3), f(2)], { axis: 0 }), 'SHAPE', /got f32 \[2\]/],
    [() => core.cat([f(2), theirs(2)], { axis: 0 }), 'SHAPE', /one device.*host/],
  ],
  empty: [
    [() => device.empty([2, -1]), 'SHAPE', /\[2, -1\]/],
    [() => device.zeros([1.5]), 'SHAPE', /\[1\.5\]/],
    [
      () => device.zeros([2], { dtype: 'i32', requiresGrad: true }),
      'DTYPE',
      /requiresGrad, got i32/,
    ],
  ],
  tensor: [
    [() => device.tensor([1, 2, 3], [2]), 'SHAPE', /2 values for shape \[2\], got 3/],
    [
      () => device.tensor(new TextEncoder().encode('abcd')),
      'OPTION',
      /dtype for bytes, got 4 byte/,
    ],
    [
      () => device.tensor(values([1, undefined, null])),
      'OPTION',
      /numbers, got nothing as element 1/,
    ],
    [() => device.tensor(values(['1'])), 'OPTION', /numbers, got "1" as element 0/],
    [() => device.tensor(values(5)), 'OPTION', /array of numbers or a typed array, got 5/],
    [() => device.tensor([3e9], [1], { dtype: 'i32' }), 'OPTION', /that i32 holds, got 3000000000/],
    [() => device.tensor([-1], [1], { dtype: 'u32' }), 'OPTION', /that u32 holds, got -1/],
    [
      () => device.tensor(Float32Array.of(1, 1.5), [2], { dtype: 'i32' }),
      'OPTION',
      /that i32 holds, got 1.5 as element 1/,
    ],
  ],
  addInPlace: [
    [() => device.addInPlace(f(3), f(1)), 'SHAPE', /one shape, got \[3\] and \[1\]/],
    [
      () => device.addInPlace(core.slice(h(6), { axis: 0, start: 1, end: 3 }), h(2)),
      'SHAPE',
      /f16 target of whole 32-bit words, got elements \[1, 3\) of 6/,
    ],
  ],
  copyInto: [
    [
      () => device.copyInto(core.slice(h(6), { axis: 0, start: 0, end: 3 }), f(3)),
      'SHAPE',
      /whole 32-bit words/,
    ],
  ],
  'tensor.rebind': [
    [
      () => core.reshape(device.zeros([2], { requiresGrad: true }), [2, 1]).rebind(f(9).storage, 0),
      'STATE',
      /expected a leaf/,
    ],
    [() => f(4).rebind(f(5).storage, 2), 'SHAPE', /shape \[4\] at element 2.*5 elements/],
  ],
};

const rows = Object.entries(TABLE).flatMap(([op, list]) =>
  list.map(([call, code, message]) => ({ op, call, code, message })),
);

describe('misuse', () => {
  test.each(rows)('$op is a $code error that matches $message', ({ op, call, code, message }) => {
    device.scope(() => {
      other.scope(() => {
        let error: unknown;
        try {
          call();
        } catch (caught) {
          error = caught;
        }
        expect(error).toBeInstanceOf(core.TensorError);
        expect((error as core.TensorError).code).toBe(code);
        const text = (error as Error).message;
        expect(text.startsWith(`${op}: `), text).toBe(true);
        expect(text).toMatch(message);
        expect(text.endsWith('.'), text).toBe(true);
      });
    });
    expect(device.memory().live.total).toBe(0);
  });
});

describe('what waits for the device', () => {
  test('item() of a tensor with several elements is refused', async () => {
    await expect(f(2).item()).rejects.toThrow(
      /tensor\.item: expected one element, got shape \[2\]/,
    );
  });

  test('operands larger than a binding are refused with the limit', () => {
    const small = createReferenceBackend({ maxViewBytes: 64 });
    const tight = new core.Device(small);
    const x = tight.zeros([3, 7]);
    const twice = core.defineOp({
      name: 'twice',
      inputs: { x: 'float' },
      wgsl: 'fn element(i: u32) -> f32 { return 2.0 * load_x(i); }',
      plain: ({ x: from }, out) => out.data.set(from.data.map((value) => 2 * value)),
    });
    const call = () => twice(x);
    expect(call).toThrow(core.LimitError);
    expect(call).toThrow(/twice: .*at most 64 bytes.*\[3, 7\] of 84 bytes.*Split/);
    expect(call).toThrow(expect.objectContaining({ requestedBytes: 84, limitBytes: 64 }));
    expect(() => core.softmax(x)).not.toThrow(); // The kernels of the device split what they can.
  });
});

describe('the classes', () => {
  test('carry their codes, causes and fields', () => {
    const cause = new Error('why');
    const errors = [
      new core.ShapeError('m', { cause }),
      new core.DTypeError('m', { cause }),
      new core.OptionError('m', { cause }),
      new core.LimitError('m', { cause, requestedBytes: 2, limitBytes: 1 }),
      new core.DisposedError('m', { cause }),
      new core.DeviceLostError('m', { cause, reason: 'destroyed' }),
      new core.OutOfMemoryError('m', { cause, requestedBytes: 2 }),
      new core.GraphError('m', { cause }),
      new core.StateError('m', { cause }),
    ];
    expect(errors.map(({ code }) => code)).toEqual([
      'SHAPE',
      'DTYPE',
      'OPTION',
      'LIMIT',
      'DISPOSED',
      'DEVICE_LOST',
      'OUT_OF_MEMORY',
      'GRAPH',
      'STATE',
    ]);
    for (const error of errors) {
      expect(error).toBeInstanceOf(core.TensorError);
      expect(error.cause).toBe(cause);
      expect(error.name).toBe(error.constructor.name);
    }
    expect('cause' in new core.ShapeError('m')).toBe(false);
  });

  test('a shader error lists its messages over the numbered source', () => {
    const messages = [{ severity: 'error', message: 'bad', line: 2, column: 3 }] as const;
    const error = new core.ShaderError('matmul', messages, 'fn a\nfn b');
    expect(error.message).toBe(
      'shader matmul: it did not compile.\n  2:3 error: bad\n   1 | fn a\n   2 | fn b',
    );
    expect(error).toMatchObject({ code: 'SHADER', label: 'matmul', source: 'fn a\nfn b' });
  });
});
