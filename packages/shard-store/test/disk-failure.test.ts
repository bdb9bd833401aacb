// A disk that fails, wears out or is full: typed errors, and the last whole generation opens again.

import { execFile } from 'node:child_process';
import {
  appendFile,
  mkdir,
  readdir,
  readFile,
  stat,
  symlink,
  truncate,
  unlink,
  writeFile,
} from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ShardStore, StoreErrorCode } from '@shardweave/shard-store';
import { nodeFiles, type OpenFile, openDiskStore } from '@shardweave/shard-store/node';
import { diskFull, type FileCall, interceptFiles } from '@shardweave/shard-store/testing-node';
import { describe, expect, it } from 'vitest';
import { newDirectory } from './directories.ts';

const KEYS = ['parameter', 'exp_avg', 'exp_avg_sq'];
const BYTES = 2 ** 20 + 300; // two chunks

/** The value of every key in a step: a store that mixes steps has unequal ones. */
function state(step: number): Uint8Array {
  return new Uint8Array(BYTES).fill(step);
}

async function runStep(store: ShardStore, step: number): Promise<void> {
  await Promise.all(KEYS.map((key) => store.write(key, state(step))));
  await store.commit();
}

/** The step that a store holds, or an error where it holds none as a whole. */
async function stepIn(store: ShardStore): Promise<number> {
  const steps = new Set<number>();
  for (const key of KEYS) {
    const value = new Uint8Array(store.byteLength(key) ?? 0);
    await store.read(key, value);
    expect(Buffer.compare(value, state(value[0]!))).toBe(0);
    steps.add(value[0]!);
  }
  expect([...steps]).toHaveLength(1);
  return [...steps][0]!;
}

/** What a killed process leaves behind, without one: its lock names this process, which lives. */
async function forgetOwner(directory: string): Promise<void> {
  const names = (await readdir(directory)).filter((name) => name.startsWith('owner.'));
  await Promise.all(names.map((name) => unlink(join(directory, name))));
}

async function codeOf(promise: Promise<unknown>): Promise<StoreErrorCode | 'resolved'> {
  return promise.then(
    () => 'resolved',
    (error: { code: StoreErrorCode }) => error.code,
  );
}

describe('a disk that dies at any call', () => {
  it.each([false, true])('leaves the old generation or the new one (fsync %s)', async (fsync) => {
    const found = new Map<number, number>();
    for (let last = 0; ; last++) {
      const directory = await newDirectory();
      const store = await openDiskStore({ directory });
      await runStep(store, 1);
      await runStep(store, 2);
      await store.close();
      let calls = -Infinity;
      const files = interceptFiles((call) => {
        if (calls++ >= last)
          throw Object.assign(new Error(`EIO: ${call.operation}`), { code: 'EIO' });
      });
      const dying = await openDiskStore({ directory, fsync, files });
      calls = 0;
      const outcome = await codeOf(runStep(dying, 3));
      await dying.close().catch(() => {});
      await forgetOwner(directory);
      const next = await openDiskStore({ directory });
      const step = await stepIn(next);
      found.set(step, (found.get(step) ?? 0) + 1);
      if (outcome === 'resolved') expect(step).toBe(3);
      else expect(outcome).toBe('IO');
      await runStep(next, 4); // and it goes on from there
      expect(await stepIn(next)).toBe(4);
      await next.close();
      if (outcome === 'resolved' && calls < last) break;
    }
    expect([...found.keys()].sort()).toEqual([2, 3]);
    // Three values of an open, two writes, a truncation and a close, and what the manifest takes.
    expect(found.get(2)).toBeGreaterThan(15);
  });
});

describe('a full disk', () => {
  it('rejects with FULL, keeps both the last generation and the values since', async () => {
    const directory = await newDirectory();
    let isFull = false;
    const files = interceptFiles(({ operation, path }) => {
      if (isFull && operation === 'write' && path.endsWith('.1')) throw diskFull(path);
    });
    const store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    isFull = true;
    expect(await codeOf(store.write('exp_avg', state(2)))).toBe('FULL');
    expect(await stepIn(store)).toBe(1);
    expect(await codeOf(store.commit())).toBe('INCOMPLETE');
    isFull = false;
    await runStep(store, 2);
    expect(await stepIn(store)).toBe(2);
    await store.close();
  });

  it('keeps the value before a second write of the step, which fails half-way', async () => {
    const directory = await newDirectory();
    let isFull = false;
    const files = interceptFiles(({ operation, path, end = 0 }) => {
      if (isFull && operation === 'write' && end > 2 ** 20) throw diskFull(path);
    });
    const store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    await Promise.all(KEYS.map((key) => store.write(key, state(2))));
    isFull = true;
    for (const key of KEYS) expect(await codeOf(store.write(key, state(3)))).toBe('FULL');
    expect(await stepIn(store)).toBe(2);
    await store.close();
  });

  it('rejects a commit with FULL, and the same commit succeeds once there is room', async () => {
    const directory = await newDirectory();
    let isFull = false;
    const files = interceptFiles(({ operation, path }) => {
      if (isFull && operation === 'write' && path.includes('manifest')) throw diskFull(path);
    });
    let store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    isFull = true;
    await Promise.all(KEYS.map((key) => store.write(key, state(2))));
    expect(await codeOf(store.commit())).toBe('FULL');
    expect(store.generation).toBe(1);
    expect(await stepIn(store)).toBe(2);
    isFull = false;
    await store.commit();
    await store.close();
    store = await openDiskStore({ directory });
    expect([store.generation, await stepIn(store)]).toEqual([2, 2]);
    await store.close();
  });

  it.skipIf(process.platform !== 'linux')(
    'is told from the kernel itself (/dev/full, on Linux)',
    async () => {
      const directory = await newDirectory();
      const store = await openDiskStore({ directory });
      await runStep(store, 1);
      for (const id of [1, 2, 3]) await symlink('/dev/full', join(directory, `00000${id}.1`));
      expect(await codeOf(runStep(store, 2))).toBe('FULL');
      expect(await stepIn(store)).toBe(1);
      await store.close();
    },
  );

  it('takes nothing more from the third step on: values go over files that are there', async () => {
    const directory = await newDirectory();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await runStep(store, 2);
    const before = await slotsIn(directory);
    expect(before).toHaveLength(2 * KEYS.length);
    for (let step = 3; step < 6; step++) await runStep(store, step);
    expect(await slotsIn(directory)).toEqual(before);
    await store.write('parameter', state(6).subarray(5)); // and gives back what it needs no more
    expect((await stat(join(directory, '000001.1'))).size).toBe(BYTES - 5);
    await store.close();
  });
});

describe('a small file system', () => {
  it('fills up, loses nothing, and goes on when there is room', async (context) => {
    const directory = await newDirectory();
    const run = promisify(execFile);
    const mount = run('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', directory]);
    if ((await mount.catch(() => undefined)) === undefined) {
      // A real one; the cases above fill up a file layer, for whoever runs them.
      context.skip('mounting a file system needs root');
    }
    try {
      let store = await openDiskStore({ directory });
      await runStep(store, 1);
      const ballast = join(directory, 'ballast');
      await writeFile(ballast, new Uint8Array(3 * 2 ** 20));
      expect(await codeOf(runStep(store, 2))).toBe('FULL');
      await store.close();
      await fillUp(ballast); // not one block is left
      store = await openDiskStore({ directory });
      expect([store.generation, await stepIn(store)]).toEqual([1, 1]);
      await unlink(ballast);
      await runStep(store, 2);
      expect(await stepIn(store)).toBe(2);
      await store.close();
    } finally {
      await run('umount', [directory]);
    }
  });
});

describe('what is not what was written', () => {
  const damages: readonly [string, (path: string) => Promise<void>][] = [
    ['a flipped bit', (path) => flip(path, BYTES - 1)],
    ['a flipped bit in the first chunk', (path) => flip(path, 0)],
    ['a file that is too short', (path) => truncate(path, BYTES - 1)],
    ['an empty file', (path) => truncate(path, 0)],
    ['a missing file', (path) => unlink(path)],
  ];

  it.each(damages)('%s rejects the read that meets it, naming the key', async (_, damage) => {
    const directory = await newDirectory();
    let store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.close();
    await damage(join(directory, '000002.0'));
    store = await openDiskStore({ directory });
    const read = store.read('exp_avg', new Uint8Array(BYTES));
    await expect(read).rejects.toMatchObject({ code: 'CORRUPT', message: /exp_avg/ });
    await store.read('parameter', new Uint8Array(BYTES));
    await store.close();
  });

  it('checks the whole of a chunk of which a read wants one byte', async () => {
    const directory = await newDirectory();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await flip(join(directory, '000001.0'), 7);
    const one = new Uint8Array(1);
    expect(await codeOf(store.read('parameter', one, { offset: 9 }))).toBe('CORRUPT');
    await store.read('parameter', one, { offset: 2 ** 20 + 9 });
    await store.close();
  });

  it('a read that meets damage leaves no call of its own on its way', async () => {
    const directory = await newDirectory();
    const writing = await openDiskStore({ directory });
    await runStep(writing, 1);
    await writing.close();
    const path = join(directory, '000001.0');
    await flip(path, 0);
    await truncate(path, 2 ** 20 + 7); // and the second chunk is too short
    const unhandled: unknown[] = [];
    const note = (error: unknown) => unhandled.push(error);
    process.on('unhandledRejection', note);
    try {
      const { files, calls } = watchedReads();
      const store = await openDiskStore({ directory, files });
      const read = store.read('parameter', new Uint8Array(BYTES));
      await expect(read).rejects.toThrow(/checksum/);
      expect(calls).toEqual({ onTheirWay: 0, atClose: [0, 0] }); // the manifest's file, and this one
      while (calls.onTheirWay > 0) await new Promise((resolve) => setImmediate(resolve));
      await store.close();
    } finally {
      process.off('unhandledRejection', note);
    }
    expect(unhandled).toEqual([]);
  });

  it('does not open on a damaged manifest', async () => {
    const directory = await newDirectory();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.close();
    const manifest = await readFile(join(directory, 'manifest'), 'utf8');
    await writeFile(
      join(directory, 'manifest'),
      manifest.replace('"generation":1', '"generation":3'),
    );
    expect(await codeOf(openDiskStore({ directory }))).toBe('CORRUPT');
    await writeFile(join(directory, 'manifest'), '{}\n2745614147\n'); // a checksum, another format
    await expect(openDiskStore({ directory })).rejects.toThrow(/version 1/);
  });
});

describe('file calls', () => {
  it('syncs each new value, the manifest and the directory, and before the rename', async () => {
    const directory = await newDirectory();
    const calls: string[] = [];
    const files = interceptFiles(({ operation, path }) => {
      if (['sync', 'rename', 'syncDirectory'].includes(operation)) {
        calls.push(`${operation} ${path.slice(directory.length + 1)}`);
      }
    });
    const store = await openDiskStore({ directory, files, fsync: true });
    await runStep(store, 1);
    calls.length = 0;
    await store.write('exp_avg', state(2));
    await store.commit();
    expect(calls).toEqual([
      'sync 000002.1',
      'sync manifest.next',
      'rename manifest.next',
      'syncDirectory ',
    ]);
    await store.close();
  });

  it('keeps at most maxConcurrent files open, and as many where there is work', async () => {
    const directory = await newDirectory();
    let [open, peak] = [0, 0];
    const count = ({ operation }: FileCall) => {
      if (operation.startsWith('openTo')) peak = Math.max(peak, ++open);
      if (operation === 'close') open--;
    };
    const store = await openDiskStore({
      directory,
      files: interceptFiles(count),
      maxConcurrent: 3,
    });
    [open, peak] = [0, 0];
    const keys = Array.from({ length: 12 }, (_, index) => `key ${index}`);
    await Promise.all(keys.map((key) => store.write(key, state(1))));
    await Promise.all(keys.map((key) => store.read(key, new Uint8Array(BYTES))));
    expect([open, peak]).toEqual([0, 3]);
    await store.close();
  });

  it('goes on after short reads and writes', async () => {
    const directory = await newDirectory();
    const files = {
      ...nodeFiles,
      openToRead: async (path: string) => shorten(await nodeFiles.openToRead(path)),
      openToWrite: async (path: string) => shorten(await nodeFiles.openToWrite(path)),
    };
    const store = await openDiskStore({ directory, files });
    await runStep(store, 9);
    expect(await stepIn(store)).toBe(9);
    await store.close();
  });

  it('removes the files of deleted keys at the commit, and nothing else', async () => {
    const directory = await newDirectory();
    await mkdir(join(directory, 'mine'));
    await writeFile(join(directory, 'notes.txt'), 'mine');
    await writeFile(join(directory, 'manifest.next'), 'half');
    await writeFile(join(directory, '000009.2'), 'nobody has it');
    const store = await openDiskStore({ directory });
    const left = (await readdir(directory)).filter((name) => !name.startsWith('owner.'));
    expect(left.sort()).toEqual(['mine', 'notes.txt']);
    await runStep(store, 1);
    await store.delete('exp_avg');
    expect(await slotsIn(directory)).toHaveLength(3);
    await store.commit();
    expect(await slotsIn(directory)).toEqual(['000001.0', '000003.0']);
    expect(await readdir(directory)).toEqual(expect.arrayContaining(['mine', 'notes.txt']));
    await store.close();
  });
});

/** Files whose reads are counted while they are on their way. */
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

/** Writes to a file until the disk takes no byte more. */
async function fillUp(path: string): Promise<void> {
  for (let size = 2 ** 20; size >= 1; size /= 2) {
    while (await isWritten(path, size)) {}
  }
}

async function isWritten(path: string, size: number): Promise<boolean> {
  return appendFile(path, new Uint8Array(size)).then(
    () => true,
    () => false,
  );
}

async function slotsIn(directory: string): Promise<readonly string[]> {
  return (await readdir(directory)).filter((name) => /^\d{6}\.\d$/.test(name)).sort();
}

async function flip(path: string, index: number): Promise<void> {
  const bytes = await readFile(path);
  bytes[index]! ^= 1;
  await writeFile(path, bytes);
}

/** A file that takes and gives at most 100 kB at a time. */
function shorten<File extends Awaited<ReturnType<typeof nodeFiles.create>>>(file: File): File {
  return {
    ...file,
    read: (into, position) => file.read(into.subarray(0, 100_000), position),
    write: (bytes, position) => file.write(bytes.subarray(0, 100_000), position),
  };
}
