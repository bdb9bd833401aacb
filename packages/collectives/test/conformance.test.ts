// The conformance suite over both transports, and their results against each other.

import { conformanceCases, memoryHarness, transcriptHash } from '@shardweave/collectives/testing';
import { describe, expect, it } from 'vitest';
import { wsHarness } from './ws-harness.js';

const HARNESSES = [memoryHarness, wsHarness];

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
  it.each([2, 3, 4])('are equal over memory and ws, on %i ranks', async (worldSize) => {
    const hashes: number[] = [];
    for (const harness of HARNESSES) {
      const ranks = await harness.create(worldSize);
      hashes.push(...(await Promise.all(ranks.map(({ group }) => transcriptHash(group)))));
      await Promise.all(ranks.map(({ group }) => group.close()));
    }
    expect(hashes).toHaveLength(2 * worldSize);
    expect(new Set(hashes).size).toBe(1);
  });
});
