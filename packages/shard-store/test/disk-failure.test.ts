// When a disk fails or is full, the errors are typed, and the last whole generation can be opened
// again.

import { execFile } from 'node:child_process';
import { appendFile, readFile, stat, symlink, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { diskFull, type FileCall, interceptFiles } from '@shardweave/shard-store/testing-node';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  BYTES,
  codeOf,
  fileOf,
  forgetOwner,
  KEYS,
  MANIFEST,
  runStep,
  slotsIn,
  state,
  stepIn,
} from './support/steps.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';

describe('a disk that dies at any call', () => {
  // With fsync there are more calls, and the others are the same.
  it.each(isLong ? [false, true] : [false])(
    'leaves the old generation or the new one (fsync %s)',
    async (fsync) => {
      const found = new Map<number, number>();
      for (let last = 0; ; last++) {
        const directory = newFolder();
        const store = await openDiskStore({ directory });
        await runStep(store, 1);
        await runStep(store, 2);
        await store.close();
        let calls = -Infinity;
        const files = interceptFiles((call) => {
          if (calls++ >= last) {
            throw Object.assign(new Error(`EIO: ${call.operation}`), { code: 'EIO' });
          }
        });
        const dying = await openDiskStore({ directory, fsync, files });
        calls = 0;
        const outcome = await codeOf(runStep(dying, 3));
        await dying.close().catch(() => {});
        await forgetOwner(directory);
        const next = await openDiskStore({ directory });
        const step = await stepIn(next);
        found.set(step, (found.get(step) ?? 0) + 1);
        if (outcome === 'resolved') {
          expect(step).toBe(3);
        } else {
          expect(outcome).toBe('IO');
        }
        await runStep(next, 4); // The store works on from there.
        expect(await stepIn(next)).toBe(4);
        await next.close();
        if (outcome === 'resolved' && calls < last) {
          break;
        }
      }
      expect([...found.keys()].sort()).toEqual([2, 3]);
      // The step has three values with an open, two writes, a truncation and a close each, and the
      // calls for the manifest.
      expect(found.get(2)).toBeGreaterThan(15);
    },
  );
});

describe('a commit that fails after its rename', () => {
  // The next owner may find either generation, so neither may be overwritten.
  it('leaves both generations whole, however often keys are written after it', async () => {
    const directory = newFolder();
    let isFailing = false;
    const files = interceptFiles(({ operation }) => {
      if (isFailing && operation === 'syncDirectory') {
        throw new Error('no answer');
      }
    });
    const store = await openDiskStore({ directory, fsync: true, files });
    await runStep(store, 1);
    const first = await readFile(join(directory, MANIFEST));
    isFailing = true;
    expect(await codeOf(runStep(store, 2))).toBe('IO');
    const found = async () => {
      await forgetOwner(directory); // The directory is as after a kill.
      const next = await openDiskStore({ directory });
      const step = await stepIn(next);
      await next.close();
      return [next.generation, step];
    };
    for (const step of [3, 4, 5]) {
      for (const key of KEYS) {
        await store.write(key, state(step, key));
      }
      expect(await stepIn(store)).toBe(step);
      expect(await found()).toEqual([2, 2]);
      // A third generation doesn't begin before it is known which of the two is there.
      expect(await codeOf(store.commit())).toBe('IO');
      expect(await found()).toEqual([2, 2]);
    }
    // The test undoes the rename, as if a power failure had lost it.
    const renamed = await readFile(join(directory, MANIFEST));
    await writeFile(join(directory, MANIFEST), first);
    expect(await found()).toEqual([1, 1]);
    await writeFile(join(directory, MANIFEST), renamed);
    isFailing = false;
    await store.commit();
    expect(store.generation).toBe(2);
    for (const key of KEYS) {
      await store.write(key, state(6, key));
    }
    for (const key of KEYS) {
      await store.write(key, state(7, key));
    }
    expect(await found()).toEqual([2, 5]);
    await store.close();
  });
});

describe('what a file system says', () => {
  it.each([
    ['ENOSPC', 'FULL'],
    ['EDQUOT', 'FULL'],
    ['EIO', 'IO'],
    ['EACCES', 'IO'],
    [undefined, 'IO'],
  ])('%s is %s, with its error as the cause', async (code, expected) => {
    const directory = newFolder();
    const cause = Object.assign(new Error('said by the test'), { code });
    let isFailing = false;
    const files = interceptFiles(({ operation }) => {
      if (isFailing && (operation === 'write' || operation === 'read')) {
        throw cause;
      }
    });
    const store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    isFailing = true;
    const calls: readonly [RegExp, () => Promise<void>][] = [
      [/^write of 'exp_avg': .*said by the test.*\(disk /, () => store.write('exp_avg', state(2))],
      [/^read of 'exp_avg': .*said by/, () => store.read('exp_avg', new Uint8Array(1))],
      [/^commit: .*said by/, () => store.withdraw('exp_avg').then(() => store.commit())],
    ];
    for (const [message, call] of calls) {
      await expect(call()).rejects.toMatchObject({ code: expected, message, cause });
    }
    isFailing = false;
    expect(await stepIn(store)).toBe(1);
    await store.close();
    expect(await codeOf(openDiskStore({ directory: join(directory, MANIFEST) }))).toBe('IO');
  });
});

describe('a full disk', () => {
  it('rejects with FULL, keeps both the last generation and the values since', async () => {
    const directory = newFolder();
    let isFull = false;
    const files = interceptFiles(({ operation, path }) => {
      if (isFull && operation === 'write' && path.endsWith('.1')) {
        throw diskFull(path);
      }
    });
    const store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    isFull = true;
    expect(await codeOf(store.write('parameter', state(2)))).toBe('FULL');
    expect(await stepIn(store)).toBe(1);
    expect(await codeOf(store.commit())).toBe('INCOMPLETE');
    isFull = false;
    await runStep(store, 2);
    expect(await stepIn(store)).toBe(2);
    await store.close();
  });

  it.each([1, 2, 3])('a write of step %i that fails half-way gives its room back', async (step) => {
    const directory = newFolder();
    let isFull = false;
    const files = interceptFiles(({ operation, path, end = 0 }) => {
      if (isFull && operation === 'write' && end > 2 ** 20) {
        throw diskFull(path);
      }
    });
    const store = await openDiskStore({ directory, files });
    for (let earlier = 1; earlier < step; earlier++) {
      await runStep(store, earlier);
    }
    isFull = true;
    expect(await codeOf(store.write('parameter', state(step)))).toBe('FULL');
    // What is left is the value of the last generation, where there is one.
    const own = (await slotsIn(directory)).filter((name) => name.startsWith('shardweave-000001'));
    expect(own).toHaveLength(step === 1 ? 0 : 1);
    isFull = false;
    await runStep(store, step);
    expect(await stepIn(store)).toBe(step);
    await store.close();
  });

  it('keeps the value before a second write of the step, which fails half-way', async () => {
    const directory = newFolder();
    let isFull = false;
    const files = interceptFiles(({ operation, path, end = 0 }) => {
      if (isFull && operation === 'write' && end > 2 ** 20) {
        throw diskFull(path);
      }
    });
    const store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    await Promise.all(KEYS.map((key) => store.write(key, state(2, key))));
    isFull = true;
    expect(await codeOf(store.write('parameter', state(3)))).toBe('FULL');
    expect(await stepIn(store)).toBe(2);
    await store.close();
  });

  it('rejects a commit with FULL, and the same commit succeeds once there is room', async () => {
    const directory = newFolder();
    let isFull = false;
    const files = interceptFiles(({ operation, path }) => {
      if (isFull && operation === 'write' && path.includes('manifest')) {
        throw diskFull(path);
      }
    });
    let store = await openDiskStore({ directory, files });
    await runStep(store, 1);
    isFull = true;
    await Promise.all(KEYS.map((key) => store.write(key, state(2, key))));
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
      const directory = newFolder();
      const store = await openDiskStore({ directory });
      await runStep(store, 1);
      for (const id of [1, 2, 3]) {
        await symlink('/dev/full', join(directory, fileOf(id, 1)));
      }
      expect(await codeOf(runStep(store, 2))).toBe('FULL');
      expect(await stepIn(store)).toBe(1);
      await store.close();
    },
  );

  it('takes nothing more from the third step on: values go over files that are there', async () => {
    const directory = newFolder();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await runStep(store, 2);
    const before = await slotsIn(directory);
    expect(before).toHaveLength(2 * KEYS.length);
    for (let step = 3; step < 6; step++) {
      await runStep(store, step);
    }
    expect(await slotsIn(directory)).toEqual(before);
    // This gives back what it no longer needs.
    await store.write('parameter', state(6).subarray(5));
    expect((await stat(join(directory, fileOf(1, 1)))).size).toBe(BYTES - 5);
    await store.close();
  });
});

describe('a small file system', () => {
  it('fills up, loses nothing, and goes on when there is room', async (context) => {
    const directory = newFolder();
    const run = promisify(execFile);
    const mount = run('mount', ['-t', 'tmpfs', '-o', 'size=3m', 'tmpfs', directory]);
    if ((await mount.catch(() => undefined)) === undefined) {
      context.skip(
        'mounting a file system needs root; the cases above fill up a file layer instead',
      );
    }
    try {
      let store = await openDiskStore({ directory });
      await runStep(store, 1);
      const ballast = join(directory, 'ballast');
      await writeFile(ballast, new Uint8Array(1.5 * 2 ** 20));
      expect(await codeOf(runStep(store, 2))).toBe('FULL');
      await store.close();
      await fillUp(ballast); // No block is left.
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

describe('file calls', () => {
  it('syncs each new value, the manifest and the directory, and before the rename', async () => {
    const directory = newFolder();
    const calls: string[] = [];
    const files = interceptFiles(({ operation, path }) => {
      if (['sync', 'rename', 'syncDirectory'].includes(operation)) {
        calls.push(`${operation} ${path.slice(directory.length + 1)}`);
      }
    });
    const store = await openDiskStore({ directory, files, fsync: true });
    await runStep(store, 1);
    calls.length = 0;
    await store.write('exp_avg', state(2, 'exp_avg'));
    await store.commit();
    expect(calls).toEqual([
      `sync ${fileOf(2, 1)}`,
      `sync ${MANIFEST}.next`,
      `rename ${MANIFEST}.next`,
      'syncDirectory ',
    ]);
    await store.close();
  });

  it('syncs the names of the directories that it makes, and without fsync nothing', async () => {
    const above = newFolder();
    const directory = join(above, 'made', 'here');
    const calls: string[] = [];
    const files = interceptFiles(({ operation, path }) => {
      if (operation.startsWith('sync')) {
        calls.push(`${operation} ${path.slice(above.length + 1)}`);
      }
    });
    const synced = ['sync made/here/shardweave-manifest.next', 'syncDirectory made/here'];
    await (await openDiskStore({ directory, files, fsync: true })).close();
    expect(calls).toEqual(['syncDirectory made', 'syncDirectory ', ...synced]);
    calls.length = 0;
    await (await openDiskStore({ directory, files, fsync: true })).close(); // Everything is there.
    await (await openDiskStore({ directory: join(above, 'other'), files })).close();
    expect(calls).toEqual([]);
  });

  it('keeps at most maxConcurrent files open, and as many where there is work', async () => {
    const directory = newFolder();
    let [open, peak] = [0, 0];
    const count = ({ operation }: FileCall) => {
      if (operation.startsWith('openTo')) {
        peak = Math.max(peak, ++open);
      }
      if (operation === 'close') {
        open--;
      }
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
    const directory = newFolder();
    const files = {
      ...nodeFiles,
      openToRead: async (path: string) => shorten(await nodeFiles.openToRead(path)),
      openToWrite: async (path: string) => shorten(await nodeFiles.openToWrite(path)),
    };
    const store = await openDiskStore({ directory, files });
    const value = Buffer.from(Uint8Array.from({ length: BYTES }, (_, index) => index % 251));
    await store.write('parameter', value);
    const back = Buffer.alloc(BYTES);
    await store.read('parameter', back);
    expect(back.equals(value)).toBe(true);
    await store.close();
  });

  it('removes the files of deleted keys at the commit', async () => {
    const directory = newFolder();
    const store = await openDiskStore({ directory });
    await runStep(store, 1);
    await store.delete('exp_avg');
    expect(await slotsIn(directory)).toHaveLength(3);
    await store.commit();
    expect(await slotsIn(directory)).toEqual([fileOf(1, 0), fileOf(3, 0)]);
    await store.close();
  });
});

/** Writes to a file until the disk takes no more bytes. */
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

/** Returns a file that writes and reads at most 100 kB in a call. */
function shorten<File extends Awaited<ReturnType<typeof nodeFiles.create>>>(file: File): File {
  return {
    ...file,
    read: (into, position) => file.read(into.subarray(0, 100_000), position),
    write: (bytes, position) => file.write(bytes.subarray(0, 100_000), position),
  };
}
