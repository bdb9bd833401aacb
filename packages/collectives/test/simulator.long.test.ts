// The programs of simulator.test.ts run for longer here (SHARDWEAVE_LONG=1). SHARDWEAVE_SEED is the
// first seed, so that each night can take others.

import { simulateMany } from '@shardweave/collectives/testing';
import { expect, it } from 'vitest';

const NUM_SEEDS = 50_000;

it('50,000 schedules', { timeout: 3_600_000 }, async () => {
  const firstSeed = Number(process.env.SHARDWEAVE_SEED ?? 10_000);
  const { failures, ...figures } = await simulateMany({ firstSeed, numSeeds: NUM_SEEDS });
  process.stdout.write(`from seed ${firstSeed}: ${JSON.stringify(figures)}\n`);
  expect(failures.map(({ message }) => message)).toEqual([]);
  expect(figures.numRuns).toBe(NUM_SEEDS);
});
