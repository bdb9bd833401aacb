// The conformance suite over all transports that one process can hold, and their results against each other.

import { conformanceCases, memoryHarness, transcriptHash } from '@shardweave/collectives/testing';
import { describe, expect, it } from 'vitest';
import { shmHarness } from './shm-harness.js';
import { wsHarness } from './ws-harness.js';

const HARNESSES = [memoryHarness, shmHarness, wsHarness];

describe.each(HARNESSES)('$name', (harness) => {
  for (const { name, worldSizes, run } of conformanceCases) {
    const reason = harness.skip?.[name];
    for (const worldSize of worldSizes.filter((size) => harness.worldSizes.includes(size))) {
      it.skipIf(reason !== undefined)(`${name}, ${worldSize} ranks`, async () => {
        await expect(run(harness, worldSize)).resolves.toBeUndefined();
      });
    }
  }
});

describe('bits', () => {
  it.each([2, 3, 4])('are equal over memory, shm and ws, on %i ranks', async (worldSize) => {
    const hashes: number[] = [];
    for (const harness of HARNESSES) {
      const ranks = await harness.create(worldSize);
      hashes.push(...(await Promise.all(ranks.map(({ group }) => transcriptHash(group)))));
      await Promise.all(ranks.map(({ group }) => group.close()));
    }
    expect(hashes).toHaveLength(HARNESSES.length * worldSize);
    expect(new Set(hashes).size).toBe(1);
  });
});
