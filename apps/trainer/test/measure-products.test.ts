// The GPUs of a run are measured before it, each kind of adapter by its first rank.

import { createMemoryGroup } from '@shardweave/collectives';
import type { Backend } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { measureProducts } from '../src/rank/measure-products.js';

const BIG = { kind: 'webgpu', description: 'big', isSoftware: false };
const SMALL = { ...BIG, description: 'small' };
const CPU = { ...BIG, kind: 'cpu' };
const LAVAPIPE = { ...BIG, isSoftware: true };

/** Runs ranks on such devices, and returns which of them measured which dtypes. */
async function measuredBy(infos: readonly object[], run: { steps?: number; isResumed?: boolean }) {
  const events: string[] = [];
  const groups = createMemoryGroup(infos.length);
  await Promise.all(
    groups.map(async (world, rank) => {
      const tuneMatmul = async (options: { dtypes: readonly string[]; mostMs: number }) => {
        expect(options.mostMs).toBeLessThanOrEqual(10_000);
        await new Promise((resolve) => setImmediate(resolve));
        events.push(`${rank} measured ${options.dtypes}`);
      };
      const backend = { info: infos[rank], tuneMatmul } as unknown as Backend;
      const onMeasure = () => events.push(`${rank} measures`);
      const options = { world, steps: 50, isResumed: false, dtype: 'f16', onMeasure, ...run };
      await measureProducts(backend, options as Parameters<typeof measureProducts>[1]);
      events.push(`${rank} goes on`);
      await world.close();
    }),
  );
  return events;
}

it('the first rank of each adapter measures, and every rank waits for that', async () => {
  const events = await measuredBy([CPU, BIG, SMALL, BIG, LAVAPIPE], {});
  expect(events.slice(0, 4).sort()).toEqual([
    '1 measured f16',
    '1 measures',
    '2 measured f16',
    '2 measures',
  ]);
  expect(events.slice(4).sort()).toEqual([0, 1, 2, 3, 4].map((rank) => `${rank} goes on`));
});

it('a short run, one that goes on and a driver on the CPU are not measured', async () => {
  const none = ['0 goes on'];
  expect(await measuredBy([BIG], { steps: 49 })).toEqual(none);
  expect(await measuredBy([BIG], { isResumed: true })).toEqual(none);
  expect(await measuredBy([LAVAPIPE], {})).toEqual(none);
  expect(await measuredBy([BIG], {})).toHaveLength(3);
});
