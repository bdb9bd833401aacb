// Whole elastic jobs over simulated sockets, on virtual time: coordinator, handshakes, links, signs
// of life and calls, while members and the coordinator are killed, stopped and cut off.

import { expect, it } from 'vitest';
import { simulateElastic } from './support/elastic-simulation.js';

const NUM_JOBS = 60;

it(`one job is left after each of ${NUM_JOBS} simulations`, { timeout: 600_000 }, async () => {
  const { kinds, numEpochs, numSteps, numEnded } = await simulateElastic(1, NUM_JOBS);
  expect(kinds.size).toBe(6);
  expect(numEpochs).toBeGreaterThan(2 * NUM_JOBS);
  expect(numSteps).toBeGreaterThan(10 * NUM_JOBS);
  expect(numEnded).toBeLessThan(NUM_JOBS / 2);
});
