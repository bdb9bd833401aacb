// What a store says that its values take at most, and that a dry one says the same.

import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { createDryStore, createHostStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';

const BYTES = { a: 1000, b: 30 } as const;
const call = fc.record({
  does: fc.constantFrom('write', 'write', 'delete', 'commit'),
  key: fc.constantFrom('a', 'b'),
});

it('peakBytes counts values at their largest, and those that were deleted', async () => {
  for (const store of [createHostStore(), createDryStore()]) {
    await store.write('a', new Uint8Array(10));
    await store.write('a', new Uint8Array(6));
    await store.write('b', new Uint8Array(4));
    await store.delete('b');
    expect(store.peakBytes).toBe(14);
  }
});

it('peakBytes of a store on disk are those of its files, and a dry one knows them', async () => {
  const property = fc.asyncProperty(fc.array(call, { maxLength: 12 }), async (calls) => {
    const directory = newFolder();
    const disk = await openDiskStore({ directory });
    const dry = createDryStore({ isOnDisk: true });
    for (const { does, key } of calls) {
      for (const store of [disk, dry]) {
        await store[does](key, new Uint8Array(BYTES[key]));
      }
    }
    expect(dry.peakBytes).toBe(disk.peakBytes);
    if (!calls.some(({ does }) => does === 'delete')) {
      const files = readdirSync(directory).filter((name) => /^shardweave-\d+\.\d$/.test(name));
      const sizes = files.map((name) => statSync(join(directory, name)).size);
      expect(disk.peakBytes).toBe(sizes.reduce((sum, size) => sum + size, 0));
    }
    await disk.close();
  });
  await fc.assert(property, { seed: 5, numRuns: 30 });
});
