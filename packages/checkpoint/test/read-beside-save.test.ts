// A load beside a save of the same directory reads one whole save, and a rank's own directory keeps
// no more than two.

import { readdir } from 'node:fs/promises';
import {
  beginSave,
  firstOf,
  loadSave,
  openSave,
  type PieceReader,
  type PieceStore,
  piecesIn,
  writePart,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createHostStore } from '@shardweave/shard-store';
import { type FileLayer, nodeFiles, type OpenFile } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { expectSaved, held, save, shareOf, tensor, wanted } from './support/saves.js';

const model = (seed: number) => [
  tensor('0.weight', [3, 100], { seed }),
  tensor('0.bias', [5], { seed }),
];

/** Node's files, which do not wait for the disk: nothing here ends before it. */
const unsynced = (file: OpenFile): OpenFile => ({ ...file, sync: async () => {} });
const FILES: FileLayer = {
  ...nodeFiles,
  create: async (path) => unsynced(await nodeFiles.create(path)),
  openToWrite: async (path) => unsynced(await nodeFiles.openToWrite(path)),
  syncDirectory: async () => {},
};
const placeIn = (directory: string) => pieceDirectory(directory, { files: FILES });

/** Loads a save whose directory is replaced by another one ahead of file call `position`. */
async function loadWhile(position: number) {
  const directory = newFolder();
  const store = placeIn(directory);
  await save(store, model(1), { step: 1 });
  let numCalls = 0;
  const files = interceptFiles(async () => {
    numCalls += 1;
    if (numCalls === position) {
      await save(store, model(2), {
        step: 1000,
        numParts: 3,
      });
    }
  }, FILES);
  const loaded = model(1).map((each) => wanted(each));
  const pieces = loaded.map(({ piece }) => piece);
  const step = await loadSave(pieceDirectory(directory, { files }), async (found) => {
    await found.verify(pieces);
    await found.fill(pieces);
    return found.extra.step;
  });
  const seed = step === 1 ? 1 : 2;
  expect(loaded.map(({ values }) => values)).toEqual(model(seed).map(({ values }) => values));
  return { seed, numCalls };
}

it('a load that is overtaken by a save at any of its calls has one save or the other', async () => {
  const { numCalls, seed } = await loadWhile(0);
  expect(seed).toBe(1);
  const seeds = new Set<number>();
  for (let position = 1; position <= numCalls; position += 4) {
    seeds.add((await loadWhile(position)).seed);
  }
  expect(seeds).toContain(2);
});

it('a save that was replaced says so, and a file that is missing is damage', async () => {
  const store = placeIn(newFolder());
  await save(store, model(1));
  const found = await openSave(store);
  const pieces = model(1).map((each) => wanted(each).piece);
  await save(store, model(2));
  await expect(found.verify(pieces)).rejects.toMatchObject({ code: 'REPLACED' });
  await expect(found.fill(pieces)).rejects.toMatchObject({ code: 'REPLACED' });
  const current = await openSave(store);
  for (const file of Object.keys(current.files)) {
    await store.delete(file);
  }
  await expect(current.fill(pieces)).rejects.toMatchObject({ code: 'CORRUPT' });
});

it('ranks with a directory each keep the save and the one before, and load through firstOf', async () => {
  const directories = [newFolder(), newFolder()];
  const stores = directories.map((directory) => placeIn(directory));
  for (let seed = 0; seed < 5; seed++) {
    const session = await beginSave(stores[0]!);
    const parts = [];
    for (const [rank, store] of stores.entries()) {
      const part = { save: session.id, part: `rank-${rank}` };
      parts.push(await writePart(store, shareOf(model(seed), rank, 2), part));
    }
    await session.publish(parts);
    const counts = await Promise.all(
      directories.map(async (each) => {
        return (await readdir(each)).filter((name) => name.endsWith('.pieces')).length;
      }),
    );
    expect(counts).toEqual([1, Math.min(2, seed + 1)]);
    await expectSaved({ ...stores[0]!, ...firstOf(...stores) }, model(seed));
  }
});

it('files of saves that were killed are gone when the next save begins', async () => {
  const directory = newFolder();
  const store = placeIn(directory);
  await save(store, model(1));
  const session = await beginSave(store);
  const part = { save: session.id, part: 'rank-0' };
  await writePart(store, shareOf(model(2), 0, 2), part);
  const stray = (await readdir(directory)).filter((name) => name.startsWith(session.id));
  expect(stray).toHaveLength(1);
  // The process ends here, so its lock is given up, too.
  for (const name of await readdir(directory)) {
    if (name.startsWith('shardweave-owner.')) {
      await nodeFiles.unlink(`${directory}/${name}`);
    }
  }
  const next = await beginSave(store);
  expect(await readdir(directory)).not.toContain(stray[0]);
  await next.abandon();
  await expectSaved(store, model(1));
});

it('a file whose write is under way when a read fails is removed after it', async () => {
  const events: string[] = [];
  let release: () => void = () => undefined;
  const store: PieceStore = {
    ...piecesIn(createHostStore()),
    create: async () => ({
      write: async () => {
        await new Promise<void>((resolve) => {
          release = resolve;
        });
        events.push('written');
      },
      finish: async () => {},
      abandon: async () => void events.push('removed'),
    }),
  };
  const long = held(tensor('long', [2 ** 20 + 2 ** 12]));
  const broken = { ...held(tensor('broken', [4])), read: () => Promise.reject(new Error('gone')) };
  const part = { save: 'save-000001-00000000', part: 'rank-0' };
  const writing = writePart(store, [long, broken], part);
  writing.catch(() => undefined);
  for (let i = 0; i < 10; i++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(events).toEqual([]);
  release();
  await expect(writing).rejects.toThrow('gone');
  expect(events).toEqual(['written', 'removed']);
});

it('an index that is replaced after the look at its length is read whole', async () => {
  const store = piecesIn(createHostStore());
  await save(store, model(1));
  let isFirst = true;
  const reader: PieceReader = {
    description: 'a place where somebody saves',
    read: store.read,
    byteLength: async (file) => {
      const byteLength = await store.byteLength(file);
      if (isFirst) {
        isFirst = false;
        await save(store, model(2), { numParts: 3, step: 1000 });
      }
      return byteLength;
    },
  };
  expect((await openSave(reader)).extra).toEqual({ step: 1000 });
});
