// Batch normalization over ranks is compared with BatchNorm1d over all rows as one batch.

import { BatchNorm1d, SyncBatchNorm } from '@shardweave/nn';
import { mul, ShapeError, square, sum } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorsOnRanks, onRanks } from '../../../tooling/test-kit/index.ts';
import { expectClose, makeDevice, read, values } from './support/support.js';

describe('SyncBatchNorm', () => {
  it.each([
    { name: 'even rows', rows: [2, 2] },
    { name: 'uneven rows', rows: [1, 4, 2] },
    { name: 'a rank with no rows', rows: [3, 0] },
    { name: 'one rank', rows: [5] },
  ])('equals BatchNorm1d over the whole batch: $name', async ({ rows }) => {
    const total = rows.reduce((a, b) => a + b);
    const shape = [3, 2]; // These are the channels and the length of a row.
    const size = 6;
    // The values share a large mean. Its square must not swallow the variance.
    const x = values(total * size, 5).map((value, i) => value + 30 * (1 + (Math.floor(i / 2) % 3)));
    const w = values(total * size, 6);
    const step = async (norm: BatchNorm1d, first: number, count: number) => {
      const { device } = norm;
      norm.weight!.storage.write(new Uint8Array(Float32Array.of(1.5, -2, 0.5).buffer));
      const cut = (all: number[]) => all.slice(first * size, (first + count) * size);
      const input = device.tensor(cut(x), [count, ...shape], { requiresGrad: true });
      const y = await norm.call(input);
      await sum(mul(y, device.tensor(cut(w), [count, ...shape]))).backward();
      return {
        y: await read(y),
        dx: await read(input.grad!),
        dWeight: await read(norm.weight!.grad!),
        dBias: await read(norm.bias!.grad!),
        statistics: [...(await read(norm.runningMean!)), ...(await read(norm.runningVar!))],
      };
    };
    const whole = await step(new BatchNorm1d(makeDevice(), { numFeatures: 3 }), 0, total);
    const parts = await onRanks(rows.length, async ({ rank, group }) => {
      const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
      const first = rows.slice(0, rank).reduce((a, b) => a + b, 0);
      const part = await step(norm, first, rows[rank]!);
      expect(group.stats().allGathers).toBe(rows.length === 1 ? 0 : 2);
      return part;
    });
    // In f32, neighboring values near 90 are 8e-6 apart.
    expectClose(
      parts.flatMap(({ y }) => y),
      whole.y,
      1e-4,
    );
    expectClose(
      parts.flatMap(({ dx }) => dx),
      whole.dx,
      2e-4,
    );
    const added = (key: 'dWeight' | 'dBias') =>
      [0, 1, 2].map((c) => parts.reduce((sum, part) => sum + part[key][c]!, 0));
    expectClose(added('dWeight'), whole.dWeight, 2e-4);
    expectClose(added('dBias'), whole.dBias, 1e-5);
    for (const { statistics } of parts) {
      expectClose(statistics, whole.statistics, 1e-5);
      expect(statistics).toEqual(parts[0]!.statistics);
    }
  });

  it('gathers nothing in evaluation, nor for a backward to weights alone', async () => {
    await onRanks(2, async ({ group }) => {
      const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
      const x = norm.device.tensor(values(6), [2, 3]);
      await norm.eval().call(x);
      expect(group.stats().allGathers).toBe(0);
      await sum(square(await norm.train().call(x))).backward();
      expect(group.stats().allGathers).toBe(1);
    });
  });

  it('ends a training backward alike though evaluation has begun', async () => {
    await onRanks(2, async ({ group }) => {
      const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
      const x = norm.device.tensor(values(6), [2, 3], { requiresGrad: true });
      const y = await norm.call(x);
      norm.eval();
      await sum(square(y)).backward();
      expect(group.stats().allGathers).toBe(2);
    });
  });

  it('says on every rank that one value in all is too few', async () => {
    const errors = await errorsOnRanks(2, ({ rank, group }) => {
      const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
      return norm.call(norm.device.zeros([rank, 3]));
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(ShapeError);
    }
  });
});
