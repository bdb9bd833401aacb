// Norms of gradients other than the 2-norm are compared with loops in float64, on every device.

import { gradNorm, NnConfigError } from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { makeDevice } from './support/support.js';

const SIZE = 2 ** 17 + 7; // This is more than one node.

describe.each([
  { name: 'reference', open: async () => createReferenceBackend(), reason: undefined },
  { name: 'cpu', open: () => createCpuBackend({ threads: 1 }), reason: undefined },
  { name: 'webgpu', open: openWebGpu, reason: noWebGpu },
])('the power norm on $name', ({ open, reason }) => {
  const why = reason === undefined ? '' : ` (${reason})`;

  it.skipIf(reason !== undefined)(
    `is the float64 one, over nodes and parameters${why}`,
    async () => {
      const backend = await open();
      const device = new Device(backend);
      const values = Float32Array.from(
        { length: SIZE },
        (_, i) => Math.sin(i) * ((i % 1000) / 500),
      );
      values[SIZE - 2] = -7; // This is the largest, and lies in the last node.
      const [large, small, without] = [SIZE, 5, 3].map((size) => device.zeros([size]));
      large!.grad = device.tensor(values);
      small!.grad = device.tensor(Float32Array.of(1, -2, 0, 0.5, -0.25));
      const all = [...values, 1, -2, 0, 0.5, -0.25];
      for (const normType of [1, 3, 0.5]) {
        const found = new Map<Tensor, number>();
        const norm = await gradNorm([large!, small!, without!], {
          normType,
          onParameter: (parameter, own) => void found.set(parameter, own),
        });
        const ofSmall = [1, 2, 0, 0.5, 0.25].reduce((sum, value) => sum + value ** normType, 0);
        expect([...found.keys()]).toEqual([large, small]);
        expect(found.get(small!)! / ofSmall ** (1 / normType)).toBeCloseTo(1, 5);
        const wanted = all.reduce((sum, value) => sum + Math.abs(value) ** normType, 0);
        const root = wanted ** (1 / normType);
        expect(Math.abs(norm / root - 1), `power ${normType}`).toBeLessThan(1e-5);
      }
      expect(await gradNorm([large!, small!], { normType: Infinity })).toBe(7);
      for (const value of [Number.NaN, Number.NEGATIVE_INFINITY]) {
        small!.grad = device.tensor(Float32Array.of(1, value, 2, 3, 4));
        expect(await gradNorm([large!, small!], { normType: Infinity })).toBe(Math.abs(value));
      }
      await backend.dispose();
    },
  );
});

it('is 0 without gradients, leaves no memory behind, and refuses powers of 0 or less', async () => {
  const device = makeDevice();
  const parameter = device.zeros([10]);
  const { live } = device.memory();
  expect(await gradNorm([parameter], { normType: 1 })).toBe(0);
  expect(await gradNorm([], { normType: Infinity })).toBe(0);
  expect(device.memory().live).toEqual(live);
  for (const normType of [0, -1, Number.NaN]) {
    await expect(gradNorm([parameter], { normType })).rejects.toBeInstanceOf(NnConfigError);
  }
});
