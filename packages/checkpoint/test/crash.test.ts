// A saver dies at any call of the file system. Either the previous save or the new one is there as
// a whole, and the next save works and cleans up.

import { readdir, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { expectSaved, save, tensor } from './support/saves.js';

const state = (seed: number) => [
  tensor('weight', [40], { seed }),
  tensor('weight', [40], { seed, state: 'momentum' }),
];

/** Returns a file system that stops after `count` calls, as if the process had been killed. */
function dyingAfter(count: number) {
  const calls: string[] = [];
  const files = interceptFiles(({ operation }) => {
    calls.push(operation);
    if (calls.length > count) {
      throw new Error('killed');
    }
  });
  return { files, calls };
}

/**
 * Removes the owner's lock. The lock of a killed process names a process that is gone, but the lock
 * in this test names this very process.
 */
async function forgetOwner(directory: string): Promise<void> {
  const names = await readdir(directory);
  const owners = names.filter((name) => name.startsWith('shardweave-owner.'));
  await Promise.all(owners.map((name) => unlink(join(directory, name))));
}

it('a crash at each call of a save over a save leaves one of the two whole', async () => {
  const directory = newFolder();
  const store = pieceDirectory(directory);
  await save(store, state(0));
  let last = 0;
  let isDead = true;
  for (let count = 0; isDead; count++) {
    const next = count + 1;
    const { files, calls } = dyingAfter(count);
    const saving = save(pieceDirectory(directory, { files }), state(next));
    await saving.catch((error: Error) => expect(String(error)).toContain('killed'));
    isDead = calls.length > count;
    await forgetOwner(directory);
    // The previous save is there up to the rename, and the new one from then on.
    const isNew = calls.slice(0, count).includes('rename');
    last = isNew ? next : last;
    await expectSaved(store, state(last));
  }
  // These are the calls of a save, the last of which come after the rename.
  expect(last).toBeGreaterThan(25);
  const left = (await readdir(directory)).filter((name) => !name.startsWith('shardweave-owner.'));
  expect(left.filter((name) => name.endsWith('.pieces'))).toHaveLength(2);
  expect(left.filter((name) => !name.endsWith('.pieces'))).toEqual(['index.json']);
});

it('data and its names are on the device before the index tells of them', async () => {
  const { files, calls } = dyingAfter(Number.POSITIVE_INFINITY);
  await save(pieceDirectory(newFolder(), { files }), state(1));
  const rename = calls.indexOf('rename');
  const before = calls.slice(0, rename);
  // These are two parts and the index.
  expect(before.filter((operation) => operation === 'sync')).toHaveLength(3);
  expect(before.lastIndexOf('syncDirectory')).toBeGreaterThan(before.lastIndexOf('sync'));
  expect(calls.slice(rename)).toContain('syncDirectory');
});
