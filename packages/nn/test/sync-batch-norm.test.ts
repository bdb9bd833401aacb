// Batch normalization over ranks is compared with BatchNorm1d over all rows as one batch.

import { BatchNorm1d, type StatisticsGroup, SyncBatchNorm } from '@shardweave/nn';
import { mul, ShapeError, square, sum } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose, makeDevice, read, values } from './support/support.js';

/**
 * Returns a group of ranks in one process, with only what SyncBatchNorm needs of a process group.
 */
function statisticsGroups(worldSize: number): (StatisticsGroup & { numCalls: number })[] {
  let waiting: { input: Uint8Array; output: Uint8Array; resolve: () => void }[] = [];
  const arrived: typeof waiting = [];
  return Array.from({ length: worldSize }, (_, rank) => ({
    worldSize,
    numCalls: 0,
    allGather(input, output) {
      this.numCalls += 1;
      return new Promise<void>((resolve) => {
        arrived[rank] = { input, output, resolve };
        waiting.push(arrived[rank]!);
        if (waiting.length < worldSize) {
          return;
        }
        waiting = [];
        for (const to of arrived) {
          arrived.forEach((from, i) => {
            to.output.set(from.input, i * from.input.length);
          });
        }
        for (const each of arrived) {
          each.resolve();
        }
      });
    },
  }));
}

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
    const groups = statisticsGroups(rows.length);
    const parts = await Promise.all(
      rows.map((count, rank) => {
        const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group: groups[rank]! });
        return step(
          norm,
          rows.slice(0, rank).reduce((a, b) => a + b, 0),
          count,
        );
      }),
    );
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
    const numCalls = rows.length === 1 ? 0 : 2;
    expect(groups.map((group) => group.numCalls)).toEqual(rows.map(() => numCalls));
  });

  it('gathers nothing in evaluation, nor for a backward to weights alone', async () => {
    const groups = statisticsGroups(2);
    await Promise.all(
      groups.map(async (group) => {
        const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
        const x = norm.device.tensor(values(6), [2, 3]);
        await norm.eval().call(x);
        expect(group.numCalls).toBe(0);
        await sum(square(await norm.train().call(x))).backward();
        expect(group.numCalls).toBe(1);
      }),
    );
  });

  it('ends a training backward alike though evaluation has begun', async () => {
    const groups = statisticsGroups(2);
    await Promise.all(
      groups.map(async (group) => {
        const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
        const x = norm.device.tensor(values(6), [2, 3], { requiresGrad: true });
        const y = await norm.call(x);
        norm.eval();
        await sum(square(y)).backward();
        expect(group.numCalls).toBe(2);
      }),
    );
  });

  it('says on every rank that one value in all is too few', async () => {
    const groups = statisticsGroups(2);
    const outcomes = await Promise.allSettled(
      groups.map(async (group, rank) => {
        const norm = new SyncBatchNorm(makeDevice(), { numFeatures: 3, group });
        await norm.call(norm.device.zeros([rank, 3]));
      }),
    );
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({ status: 'rejected', reason: expect.any(ShapeError) });
    }
  });
});
