// The conformance suite runs over every transport that works within one process.

import { conformanceCases, memoryHarness } from '@shardweave/collectives/testing';
import { describe, expect, it } from 'vitest';
import { shmHarness } from './support/shm-harness.js';
import { wsHarness } from './support/ws-harness.js';

const HARNESSES = [memoryHarness, shmHarness, wsHarness];
const isLong = process.env.SHARDWEAVE_LONG === '1';

/**
 * Two ranks stand back where three or four run, and four where eight do: they show what those show.
 * What eight show and three don't is not specific to a transport, nor is a rank alone, so these run
 * in memory.
 */
const tellingOf = (worldSizes: readonly number[], name: string) =>
  worldSizes.filter((size) => {
    const isMemory = name === 'memory';
    const better = { 1: isMemory ? [] : [3, 4], 2: [3, 4], 4: [8], 8: isMemory ? [] : [3] }[size];
    return isLong || better?.some((other) => worldSizes.includes(other)) !== true;
  });

describe.each(HARNESSES)('$name', (harness) => {
  for (const { name, worldSizes, run } of conformanceCases) {
    const reason = harness.skip?.[name];
    const sizes = worldSizes.filter((size) => harness.worldSizes.includes(size));
    for (const worldSize of tellingOf(sizes, harness.name)) {
      const title = `${name}, ${worldSize} ranks${reason === undefined ? '' : ` (${reason})`}`;
      it.skipIf(reason !== undefined)(title, async () => {
        await expect(run(harness, worldSize)).resolves.toBeUndefined();
      });
    }
  }
});
