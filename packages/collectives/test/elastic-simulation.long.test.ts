// More of elastic-simulation.test.ts; by hand some tens of thousands.

import { it } from 'vitest';
import { simulateElastic } from './support/elastic-simulation.js';

const FIRST_SEED = Number(process.env.SHARDWEAVE_FIRST_SEED ?? 1001);
const NUM_JOBS = Number(process.env.SHARDWEAVE_ELASTIC_SIMULATIONS ?? 2000);

it(`one job is left after each of ${NUM_JOBS} simulations`, { timeout: 3_600_000 }, async () => {
  await simulateElastic(FIRST_SEED, NUM_JOBS);
});
