// The conformance suite runs over every transport that works within one process.

import { conformanceCases, memoryHarness } from '@shardweave/collectives/testing';
import { describe, expect, it } from 'vitest';
import { shmHarness } from './support/shm-harness.js';
import { wsHarness } from './support/ws-harness.js';

const HARNESSES = [memoryHarness, shmHarness, wsHarness];
const isLong = process.env.SHARDWEAVE_LONG === '1';

/** Two ranks stand back where three run, and four where eight do: they show what those show. */
const tellingOf = (worldSizes: readonly number[]) =>
  worldSizes.filter((size) => isLong || !worldSizes.includes({ 2: 3, 4: 8 }[size] ?? 0));

describe.each(HARNESSES)('$name', (harness) => {
  for (const { name, worldSizes, run } of conformanceCases) {
    const reason = harness.skip?.[name];
    const sizes = worldSizes.filter((size) => harness.worldSizes.includes(size));
    for (const worldSize of tellingOf(sizes)) {
      const title = `${name}, ${worldSize} ranks${reason === undefined ? '' : ` (${reason})`}`;
      it.skipIf(reason !== undefined)(title, async () => {
        await expect(run(harness, worldSize)).resolves.toBeUndefined();
      });
    }
  }
});
