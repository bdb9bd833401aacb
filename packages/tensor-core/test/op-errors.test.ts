// These tests check what the ops along an axis, over rows and by masks refuse, and with which
// messages.

import {
  addRmsNorm,
  argMax,
  cumSum,
  Device,
  DTypeError,
  gather,
  geGlu,
  gt,
  rmsNorm,
  ShapeError,
  swiGlu,
  topK,
  where,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterEach, expect, test } from 'vitest';

const device = new Device(createReferenceBackend());
afterEach(() => expect(device.memory().live.total).toBe(0));

const floats = (...shape: number[]) => device.zeros(shape);
const ids = (...shape: number[]) => device.zeros(shape, { dtype: 'i32' });
const pair = (dtype: 'i32' | 'u32' | 'f16') => device.zeros([2], { dtype });

test.each<readonly [string, () => unknown]>([
  ['swiGlu: expected x [..., 2 * n], got [2, 3]', () => swiGlu(floats(2, 3))],
  ['swiGlu: expected x [..., 2 * n], got []', () => swiGlu(floats())],
  [
    'geGlu: expected gate and up of one shape, got [2, 3] and [3]',
    () => geGlu(floats(2, 3), { up: floats(3) }),
  ],
  ['rmsNorm: expected a non-empty last axis, got [2, 0]', () => rmsNorm(floats(2, 0))],
  [
    'rmsNorm: expected parameters of shape [3] (x is [2, 3]), got [2]',
    () => rmsNorm(floats(2, 3), { weight: floats(2) }),
  ],
  [
    'addRmsNorm: expected x and residual of one shape, got [2, 3] and [3]',
    () => addRmsNorm(floats(2, 3), { residual: floats(3) }),
  ],
  [
    "gather: expected indices of x's shape but along axis 1, got x [2, 3] and indices [3, 1]",
    () => gather(floats(2, 3), ids(3, 1)),
  ],
  [
    'gather: expected an axis in [-2, 2), got 2',
    () => gather(floats(2, 3), ids(2, 3), { axis: 2 }),
  ],
  [
    'topK: expected k within the 3 elements of axis 1 of [2, 3], got 4',
    () => topK(floats(2, 3), 4),
  ],
  [
    'topK: expected k within the 3 elements of axis 1 of [2, 3], got 0.5',
    () => topK(floats(2, 3), 0.5),
  ],
  ['argMax: expected elements along axis 1, got [2, 0]', () => argMax(floats(2, 0))],
  ['cumSum: expected a tensor with axes', () => cumSum(floats())],
  [
    'where: expected shapes that broadcast, got [2] and [3]',
    () => where(ids(2), floats(3), floats(3)),
  ],
])('%s', (message, call) => {
  device.scope(() => {
    expect(call).toThrow(ShapeError);
    expect(call).toThrow(message);
  });
});

test.each<readonly [string, () => unknown]>([
  ['swiGlu: expected a float tensor (f32, f16, bf16), got i32 [2]', () => swiGlu(pair('i32'))],
  ['argMax: expected a float tensor (f32, f16, bf16), got i32 [2]', () => argMax(pair('i32'))],
  ['gather: expected integer ids (i32, u32), got f16 [2]', () => gather(pair('f16'), pair('f16'))],
  ['where: expected integer ids (i32, u32), got f16 [2]', () => where(pair('f16'), pair('f16'), 0)],
  [
    'where: expected a whole number that i32 holds beside i32 [2], got 0.5',
    () => where(pair('u32'), pair('i32'), 0.5),
  ],
  [
    'gt: expected a whole number that i32 holds beside i32 [2], got 0.5',
    () => gt(pair('i32'), 0.5),
  ],
  [
    'gt: expected two floats or one integer dtype, got i32 [2] and u32 [2]',
    () => gt(pair('i32'), pair('u32')),
  ],
  [
    'addRmsNorm: expected x and residual of one dtype, got f16 and f32',
    () => addRmsNorm(pair('f16'), { residual: floats(2) }),
  ],
])('%s', (message, call) => {
  device.scope(() => {
    expect(call).toThrow(DTypeError);
    expect(call).toThrow(message);
  });
});

test('empty tensors give empty results, and k may be 0', () => {
  device.scope(() => {
    const none = floats(0, 3);
    expect(argMax(none).shape).toEqual([0]);
    expect(topK(none, 2).values.shape).toEqual([0, 2]);
    expect(topK(floats(2, 3), 0).indices.shape).toEqual([2, 0]);
    expect(cumSum(none).shape).toEqual([0, 3]);
    expect(gt(none, 0).shape).toEqual([0, 3]);
    expect(where(gt(none, 0), none, 1).shape).toEqual([0, 3]);
    expect(swiGlu(floats(0, 4)).shape).toEqual([0, 2]);
  });
});
