// A pinned value stays as it was, on disk and under every name that it got, whatever the store and
// its successors write.

import { linkSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { createHostStore } from '@shardweave/shard-store';
import { nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { codeOf } from './support/steps.ts';

const BYTES = 2 ** 20 + 5;
const value = (step: number) => new Uint8Array(BYTES).fill(step);
const pinsIn = (directory: string) => readdirSync(directory).filter((name) => name.includes('pin'));

it('a pin is read, and linked, as it was through later steps and by another store', async () => {
  const directory = newFolder();
  let store = await openDiskStore({ directory });
  await store.write('a', value(1));
  await store.commit();
  const pinned = (await store.pin!('a'))!;
  const link = join(directory, 'elsewhere');
  expect(await pinned.linkAs(link)).toBe(true);
  for (let step = 2; step < 8; step++) {
    await store.write('a', value(step));
    await store.commit();
  }
  await store.delete('a');
  await store.commit();
  const into = new Uint8Array(7);
  await pinned.read(into, { offset: 2 ** 20 - 2 });
  expect(into).toEqual(value(1).subarray(0, 7));
  expect(await codeOf(pinned.read(into, { offset: BYTES - 6 }))).toBe('USAGE');
  await store.close();
  await pinned.read(into);
  await pinned.release();
  await pinned.release();
  expect(pinsIn(directory)).toEqual([]);

  // A next owner begins with the numbers of the one before.
  store = await openDiskStore({ directory });
  for (let step = 8; step < 14; step++) {
    await store.write('a', value(step));
    await store.commit();
  }
  await store.close();
  expect(Buffer.compare(readFileSync(link), value(1))).toBe(0);
});

it('a pin takes no room of its own, and gives it back', async () => {
  const directory = newFolder();
  const store = await openDiskStore({ directory });
  await store.write('a', value(1));
  const pinned = (await store.pin!('a'))!;
  const [pin] = pinsIn(directory);
  const { ino, nlink } = statSync(join(directory, pin!));
  expect(nlink).toBe(2);
  expect(
    readdirSync(directory).some(
      (name) => name !== pin && statSync(join(directory, name)).ino === ino,
    ),
  ).toBe(true);
  await pinned.release();
  expect(pinsIn(directory)).toEqual([]);
  await store.close();
});

it('the pin of a process that died is removed by the next owner', async () => {
  const directory = newFolder();
  let store = await openDiskStore({ directory });
  await store.write('a', value(1));
  await store.commit();
  await store.pin!('a');
  await store.close();
  // This pin is another's.
  linkSync(join(directory, pinsIn(directory)[0]!), join(directory, 'notes.pin-1'));
  store = await openDiskStore({ directory });
  expect(pinsIn(directory)).toEqual(['notes.pin-1']);
  await store.close();
});

it("a pin is none where a store can't, and an error where the disk fails", async () => {
  const refusing = async (code: string) => {
    const directory = newFolder();
    const link = async () => {
      throw Object.assign(new Error(code), { code });
    };
    const store = await openDiskStore({ directory, files: { ...nodeFiles, link } });
    await store.write('a', value(1));
    return store;
  };
  for (const code of ['EPERM', 'ENOTSUP', 'EXDEV', 'EMLINK']) {
    const store = await refusing(code);
    expect(await store.pin!('a')).toBeUndefined();
    expect(await codeOf(store.pin!('b'))).toBe('UNKNOWN_KEY');
    await store.close();
    expect(await codeOf(store.pin!('a'))).toBe('CLOSED');
  }
  expect(await codeOf((await refusing('ENOSPC')).pin!('a'))).toBe('FULL');
  expect(await codeOf((await refusing('EIO')).pin!('a'))).toBe('IO');
  expect(createHostStore().pin).toBeUndefined();
});
