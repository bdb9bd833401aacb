// These tests check what the disk store makes of a directory: damage, other people's files, and
// what a dead owner left.

import { mkdir, readdir, readFile, truncate, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { nodeFiles, type OpenFile, openDiskStore } from '@shardweave/shard-store/node';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  BYTES,
  codeOf,
  fileOf,
  MANIFEST,
  runStep,
  slotsIn,
  state,
  stepIn,
} from './support/steps.ts';

describe('damaged values', () => {
  const damages: readonly [string, (path: string) => Promise<void>][] = [
    ['a flipped bit', (path) => flip(path, BYTES - 1)],
    ['a flipped bit in the first chunk', (path) => flip(path, 0)],
    ['a file that is too short', (path) => truncate(path, BYTES - 1)],
    ['an empty file', (path) => truncate(path, 0)],
    ['a missing file', (path) => unlink(path)],
  ];

  it.each(damages)('%s rejects the read that meets it, naming the key', async (_, damage) => {
    const directory = newFolder();
    let store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.close();
    await damage(join(directory, fileOf(1, 0)));
    store = await openDiskStore({ directory });
    const read = store.read('parameter', new Uint8Array(BYTES));
    await expect(read).rejects.toMatchObject({ code: 'CORRUPT', message: /parameter/ });
    await store.read('exp_avg', new Uint8Array('exp_avg'.length));
    await store.close();
  });

  it('checks the whole of a chunk of which a read wants one byte', async () => {
    const directory = newFolder();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await flip(join(directory, fileOf(1, 0)), 7);
    const one = new Uint8Array(1);
    expect(await codeOf(store.read('parameter', one, { offset: 9 }))).toBe('CORRUPT');
    await store.read('parameter', one, { offset: 2 ** 20 + 9 });
    await store.close();
  });

  it('a read that meets damage leaves no call of its own on its way', async () => {
    const directory = newFolder();
    const writing = await openDiskStore({ directory });
    await runStep(writing, 1);
    await writing.close();
    const path = join(directory, fileOf(1, 0));
    await flip(path, 0);
    await truncate(path, 2 ** 20 + 7); // Now the second chunk is too short as well.
    const unhandled: unknown[] = [];
    const note = (error: unknown) => unhandled.push(error);
    process.on('unhandledRejection', note);
    try {
      const { files, calls } = watchedReads();
      const store = await openDiskStore({ directory, files });
      const read = store.read('parameter', new Uint8Array(BYTES));
      await expect(read).rejects.toThrow(/checksum/);
      // These are the manifest's file and this one.
      expect(calls).toEqual({ onTheirWay: 0, atClose: [0, 0] });
      while (calls.onTheirWay > 0) {
        await new Promise((resolve) => setImmediate(resolve));
      }
      await store.close();
    } finally {
      process.off('unhandledRejection', note);
    }
    expect(unhandled).toEqual([]);
  });

  it('does not open on a damaged manifest', async () => {
    const directory = newFolder();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.close();
    const manifest = await readFile(join(directory, MANIFEST), 'utf8');
    await writeFile(
      join(directory, MANIFEST),
      manifest.replace('"generation":1', '"generation":3'),
    );
    expect(await codeOf(openDiskStore({ directory }))).toBe('CORRUPT');
    // This is valid, but has another format.
    await writeFile(join(directory, MANIFEST), '{}\n2745614147\n');
    await expect(openDiskStore({ directory })).rejects.toThrow(/version 1/);
  });
});

describe('a directory that others use too', () => {
  it('keeps every file of theirs as it is, whatever it is called', async () => {
    const directory = newFolder();
    await mkdir(join(directory, 'mine'));
    const names = [
      ...[
        'notes.txt',
        '20251121.1',
        '123456.7',
        '000001.0',
        '000009.2',
        'manifest',
        'manifest.next',
      ],
      ...[
        'owner.1',
        'owner.2.7.7.host',
        'owner.3.released',
        `${MANIFEST}.next.old`,
        `${MANIFEST}.old`,
      ],
      ...[
        'shardweave-000001.4',
        'shardweave-0000001.0',
        'shardweave-1.0',
        'shardweave-000001.0.old',
      ],
      ...['old-shardweave-000001.0', 'shardweave-owner.4.txt', 'shardweave-owner.old'],
    ];
    for (const name of names) {
      await writeFile(join(directory, name), name);
    }
    for (let step = 1; step <= 3; step++) {
      const store = await openDiskStore({ directory });
      expect(store.generation).toBe(2 * (step - 1));
      await runStep(store, step);
      await store.write(`step ${step}`, state(step, 'step'));
      await store.delete(`step ${step - 1}`);
      await store.commit();
      await store.close();
    }
    for (const name of names) {
      expect(await readFile(join(directory, name), 'utf8')).toBe(name);
    }
    expect(await readdir(directory)).toContain('mine');
  });
});

describe('what a dead owner left', () => {
  it('removes values that no manifest names, and a manifest that was not finished', async () => {
    const directory = newFolder();
    let store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.close();
    const before = (await readdir(directory)).filter((name) => !name.includes('owner'));
    await writeFile(join(directory, `${MANIFEST}.next`), 'half');
    await writeFile(join(directory, fileOf(9, 2)), 'nobody has it');
    store = await openDiskStore({ directory });
    const left = (await readdir(directory)).filter((name) => !name.includes('owner'));
    expect(left.sort()).toEqual(before.sort());
    await store.close();
  });

  it('begins an empty store where it died before the first commit', async () => {
    const directory = newFolder();
    let store = await openDiskStore({ directory });
    await store.write('parameter', state(1));
    await store.close();
    store = await openDiskStore({ directory });
    expect([store.generation, store.keys()]).toEqual([0, []]);
    expect(await slotsIn(directory)).toEqual([]);
    await store.close();
  });

  it('does not take values that lost their manifest for strays', async () => {
    const directory = newFolder();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.close();
    const manifest = await readFile(join(directory, MANIFEST));
    await unlink(join(directory, MANIFEST));
    for (const _ of [1, 2]) {
      const opening = openDiskStore({ directory });
      await expect(opening).rejects.toMatchObject({ code: 'CORRUPT', message: /Put it back/ });
    }
    await writeFile(join(directory, MANIFEST), manifest);
    const next = await openDiskStore({ directory });
    expect(await stepIn(next)).toBe(1);
    await next.close();
  });
});

/** Returns a file system that counts the reads that are on their way. */
function watchedReads() {
  const calls = { onTheirWay: 0, atClose: [] as number[] };
  const openToRead = async (path: string): Promise<OpenFile> => {
    const file = await nodeFiles.openToRead(path);
    return {
      ...file,
      read: (into, position) => {
        calls.onTheirWay++;
        return file.read(into, position).finally(() => calls.onTheirWay--);
      },
      close: () => {
        calls.atClose.push(calls.onTheirWay);
        return file.close();
      },
    };
  };
  return { files: { ...nodeFiles, openToRead }, calls };
}

async function flip(path: string, index: number): Promise<void> {
  const bytes = await readFile(path);
  bytes[index]! ^= 1;
  await writeFile(path, bytes);
}
