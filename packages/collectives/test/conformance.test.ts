// The conformance suite runs over every transport that works within one process.

import { conformanceCases, memoryHarness } from '@shardweave/collectives/testing';
import { describe, expect, it } from 'vitest';
import { shmHarness } from './support/shm-harness.js';
import { wsHarness } from './support/ws-harness.js';

const HARNESSES = [memoryHarness, shmHarness, wsHarness];

describe.each(HARNESSES)('$name', (harness) => {
  for (const { name, worldSizes, run } of conformanceCases) {
    const reason = harness.skip?.[name];
    for (const worldSize of worldSizes.filter((size) => harness.worldSizes.includes(size))) {
      const title = `${name}, ${worldSize} ranks${reason === undefined ? '' : ` (${reason})`}`;
      it.skipIf(reason !== undefined)(title, async () => {
        await expect(run(harness, worldSize)).resolves.toBeUndefined();
      });
    }
  }
});
