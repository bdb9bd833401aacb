// These tests define or call custom ops wrongly.

import {
  type CustomOpSpec,
  cast,
  Device,
  DTypeError,
  GraphError,
  OptionError,
  ShapeError,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, test } from 'vitest';
import { bucket, define, swish, turnRows } from './support/own-ops.js';

describe('a wrong definition or call', () => {
  const device = new Device(createReferenceBackend());
  const other = new Device(createReferenceBackend());
  const x = device.tensor([1, 2]);
  const call = swish as unknown as (...args: unknown[]) => unknown;

  test.each([
    ['an unknown option', { outputs: 1 }, "defineOp: expected known options, got 'outputs'"],
    ['no twin', { plain: undefined }, 'defineOp: expected plain to be a function, got nothing'],
    ['no input', { inputs: {} }, "defineOp 'broken': expected the number of inputs"],
    [
      'an unknown kind',
      { inputs: { x: 'f64' } },
      "defineOp 'broken': expected inputs.x to be one of",
    ],
    [
      'a taken name',
      { inputs: { out: 'f32' } },
      "defineOp 'broken': expected the name of an input",
    ],
    ['a param that is no word', { params: { 'a-b': 'f32' } }, 'expected the name of a param'],
    ['a param of an unknown type', { params: { a: 'f16' } }, 'expected params.a to be one of'],
    [
      'saving what there is not',
      { saved: ['y'] },
      'expected what is saved to be one of "x", "out"',
    ],
  ])('%s', (_, parts, message) => {
    const attempt = () => define(parts as Partial<CustomOpSpec<'x', never>>);
    expect(attempt).toThrow(OptionError);
    expect(attempt).toThrow(message);
  });

  test.each([
    [
      'a missing param',
      OptionError,
      () => call(x),
      'swish: expected beta to be a number, got nothing',
    ],
    ['an unknown param', OptionError, () => call(x, { beta: 1, alpha: 1 }), "got 'alpha'"],
    [
      'no tensor',
      OptionError,
      () => call({ x: 1 }, { beta: 1 }),
      'swish: expected x to be a tensor',
    ],
    ['an unknown input', OptionError, () => call({ y: x }, { beta: 1 }), "got 'y'"],
    [
      'a u32 that is none',
      OptionError,
      () => turnRows({ x, scale: x }, { cols: 2, by: -1 }),
      'turnRows: expected by to be a whole number below 2^32, got -1',
    ],
    [
      'integers',
      DTypeError,
      () => swish(cast(x, 'i32'), { beta: 1 }),
      'swish: expected a float tensor',
    ],
    [
      'another float',
      DTypeError,
      () => bucket({ x: cast(x, 'f16'), offset: cast(x, 'i32') }),
      'bucket: expected x to be f32, got f16 [2]',
    ],
    [
      'two devices',
      ShapeError,
      () => turnRows({ x, scale: other.tensor([1]) }, { cols: 1, by: 0 }),
      'turnRows: expected tensors of one device',
    ],
    [
      'an input without elements',
      ShapeError,
      () => turnRows({ x, scale: device.empty([0]) }, { cols: 1, by: 0 }),
      'turnRows: expected inputs with elements',
    ],
  ] as const)('%s', (_, type, attempt, message) => {
    expect(attempt).toThrow(type);
    expect(attempt).toThrow(message);
  });

  test('an op without a gradient throws in backward, not in forward', async () => {
    const leaf = device.tensor([1], [1], { requiresGrad: true });
    const y = define({ gradient: undefined })(leaf);
    await expect(y.backward()).rejects.toThrow(GraphError);
    await expect(define({ gradient: undefined })(leaf).backward()).rejects.toThrow("'broken'");
  });

  test.each([
    ['another shape', GraphError, () => ({ x: device.zeros([3]) }), 'of shape [2], got [3]'],
    ['no input of its own', OptionError, () => ({ y: x }), "got 'y'"],
    ['no tensor', OptionError, () => ({ x: 1 }), 'gradient of broken: expected x to be a tensor'],
  ])('a gradient of %s', async (_, type, gradient, message) => {
    const leaf = device.tensor([1, 2], [2], { requiresGrad: true });
    const op = define({ gradient: gradient as never });
    const attempt = device.scope(() => op(leaf).backward({ gradient: device.full([2], 1) }));
    await expect(attempt).rejects.toBeInstanceOf(type);
    await expect(attempt).rejects.toThrow(message);
  });
});
