// Every op runs on every backend, and its values and gradients are compared with twins in float64.

import { type Backend, Device, relu } from '@shardweave/tensor-core';
import { createReferenceBackend, opCase, opCases } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { fewHalves } from '../../../tooling/test-kit/first-of-each.ts';
import { testedBackends } from './support/backends.js';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const cases = opCases();

describe.each(await testedBackends())('ops on $name', ({ name, reason, open }) => {
  // What an op records for its gradient in 16 bits shows on the reference; the rest is that of the
  // kernels, which have tests of their own.
  const isWhole = isLong || name === 'reference';
  describe.skipIf(reason !== undefined)('against float64 twins', () => {
    let backend: Backend;
    beforeAll(async () => {
      backend = await open();
    });
    afterAll(() => backend.dispose());

    test.each(isWhole ? cases : fewHalves(cases))('$name', async (opCase) => {
      const device = new Device(backend, { seed: 7 });
      await opCase.run(device);
      device.dispose();
      expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    });
  });
});

test('a gradient that differs is named by its input and by what was expected of it', async () => {
  const device = new Device(createReferenceBackend());
  // At relu's kink the central difference is half a slope, where the op has none.
  const onTheKink = opCase('relu on its kink', {
    dtype: 'f32',
    inputs: [{ shape: [2], values: [1, 0] }],
    op: ([x]) => relu(x!),
    twin: ([x]) => ({ shape: [2], data: x!.data.map((value) => Math.max(value, 0)) }),
  });
  await expect(onTheKink.run(device)).rejects.toThrow(
    /gradient 0\[1\], where the input is 0: expected -?0\.\d+ \(the twin's central difference, /,
  );
  device.dispose();
});
