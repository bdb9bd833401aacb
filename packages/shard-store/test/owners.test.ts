// Each directory has one owner. These tests run owners, and kill them, as real processes.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { StoreLockedError } from '@shardweave/shard-store';
import { hasOwner, nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { build } from 'esbuild';
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { BYTES, KEYS, type KillPlan } from './support/kill-plan.ts';

const WRITER = fileURLToPath(new URL('support/writer-process.ts', import.meta.url));
let program = '';

beforeAll(async () => {
  program = join(newFolder(), 'writer-process.mjs');
  await build({
    entryPoints: [WRITER],
    outfile: program,
    bundle: true,
    format: 'esm',
    platform: 'node',
    conditions: ['@shardweave/source'],
    logLevel: 'error',
  });
});

/** This is a process that owns `directory`, and what it prints. */
class Writer {
  readonly #process: ChildProcess;
  readonly #closed: Promise<unknown[]>;
  readonly lines: string[] = [];

  /** @param within a command that runs it */
  constructor(directory: string, plan?: KillPlan, within: readonly string[] = []) {
    const own = [program, directory, ...(plan ? [JSON.stringify(plan)] : [])];
    const [command, ...args] = [...within, process.execPath, ...own];
    this.#process = spawn(command!, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    this.#closed = once(this.#process, 'close');
    onTestFinished(() => void this.#process.kill('SIGKILL')); // where the test fails before it does
    this.#process.stdout!.on('data', (text: Buffer) => {
      this.lines.push(...String(text).split('\n').filter(Boolean));
    });
  }

  get pid(): number {
    return this.#process.pid!;
  }

  async prints(numLines: number): Promise<void> {
    while (this.lines.length < numLines) {
      await once(this.#process.stdout!, 'data');
    }
  }

  /** Resolves with the signal that ended it, once all that it printed has come. */
  async ends(): Promise<unknown> {
    const [, signal] = await this.#closed;
    return signal;
  }

  async kill(): Promise<void> {
    this.#process.kill('SIGKILL');
    await this.#closed;
  }
}

/** What the killed step left in the files of its three keys, in their order. */
type Left = 'nothing' | 'half' | 'whole';

interface KillPoint extends Omit<KillPlan, 'numSteps' | 'operation' | 'file'> {
  /** Absent where the operating system decides. */
  readonly left?: readonly [Left, Left, Left];
  /** Whether the next owner finds the step in which the kill came. */
  readonly isCommitted?: true;
}

type KillRow = readonly [at: string, KillPlan['operation'], file: string, KillPoint];

const VALUE = '\\d{6}\\.\\d$';
const MANIFEST = 'manifest';
const ANY = '';
const ALL = ['whole', 'whole', 'whole'] as const;

// The calls of a step: an open, two writes, a truncation and a close for each of three values, the
// same for a small value, then the manifest in pieces, its rename, and the removal of what is left
// over.
const KILL_POINTS: readonly KillRow[] = [
  ['ahead of everything', 'openToWrite', VALUE, { left: ['nothing', 'nothing', 'nothing'] }],
  [
    'between the chunks of the first value',
    'write',
    VALUE,
    { skip: 1, left: ['half', 'nothing', 'nothing'] },
  ],
  ['ahead of the first truncation', 'truncate', VALUE, { left: ['whole', 'nothing', 'nothing'] }],
  ['between two values', 'openToWrite', VALUE, { skip: 1, left: ['whole', 'nothing', 'nothing'] }],
  ['in the last value', 'write', VALUE, { skip: 5, left: ['whole', 'whole', 'half'] }],
  ['among values that are written at once', 'write', VALUE, { skip: 3, maxConcurrent: 4 }],
  ['ahead of the first fsync of a value', 'sync', VALUE, { fsync: true, left: ALL }],
  ['behind the first fsync of a value', 'sync', VALUE, { fsync: true, skip: 1, left: ALL }],
  ['ahead of the manifest', 'openToWrite', MANIFEST, { left: ALL }],
  ['in the middle of the manifest', 'write', MANIFEST, { skip: 2, left: ALL }],
  ['ahead of the rename', 'rename', MANIFEST, { left: ALL }],
  ['ahead of the fsync of the manifest', 'sync', MANIFEST, { fsync: true, left: ALL }],
  ['behind the fsync of the manifest', 'rename', MANIFEST, { fsync: true, left: ALL }],
  ['behind the rename', 'list', ANY, { left: ALL, isCommitted: true }],
  [
    'ahead of the fsync of the directory',
    'syncDirectory',
    ANY,
    { fsync: true, left: ALL, isCommitted: true },
  ],
  ['ahead of the removal of a deleted key', 'unlink', VALUE, { left: ALL, isCommitted: true }],
];

/** With fsync the calls between are the same, so those points run among the long tests. */
const isLong = process.env.SHARDWEAVE_LONG === '1';
const SHORT = KILL_POINTS.filter(([, , , { fsync }]) => fsync !== true);

describe('a process that is killed in the middle of a step', () => {
  it.each(isLong ? KILL_POINTS : SHORT)(
    'a kill %s leaves a whole step',
    async (_, operation, file, point) => {
      const { left, isCommitted, ...rest } = point;
      const directory = newFolder();
      let last = 0;
      // The first kill is in the step that makes the second file of each key. The next one is in a
      // step that overwrites files of earlier steps and of the kill.
      for (const numSteps of [1, 2]) {
        const writer = new Writer(directory, { numSteps, operation, file, ...rest });
        expect(await writer.ends()).toBe('SIGKILL');
        const told = Array.from({ length: numSteps }, (_, index) => String(last + 1 + index));
        expect(writer.lines).toEqual(told);
        const killed = last + numSteps + 1;
        if (left) {
          expect(await leftIn(directory, killed)).toEqual(left);
        }
        last = isCommitted ? killed : killed - 1;
        const store = await openDiskStore({ directory });
        expect(store.generation).toBe(last);
        expect([...store.keys()].sort()).toEqual([...KEYS, `only in step ${last}`].sort());
        for (const key of KEYS) {
          const value = Buffer.alloc(BYTES);
          await store.read(key, value);
          expect(value.equals(Buffer.alloc(BYTES, last))).toBe(true);
        }
        await store.close();
      }
    },
  );
});

async function leftIn(directory: string, step: number): Promise<readonly Left[]> {
  const names = await readdir(directory);
  return Promise.all(
    KEYS.map(async (_, index) => {
      const own = names.filter((name) => name.startsWith(`shardweave-00000${index + 1}.`));
      const files = await Promise.all(own.map((name) => readFile(join(directory, name))));
      const file = files.find((bytes) => bytes[0] === step);
      if (file === undefined) {
        return 'nothing';
      }
      return file[BYTES - 1] === step ? 'whole' : 'half';
    }),
  );
}

/** The command that runs another in a space of process numbers of its own, where it may. */
const UNSHARE = [[], ['--map-root-user']]
  .map((user) => ['unshare', ...user, '--pid', '--fork', '--kill-child', '--mount-proc'])
  .find(([command, ...args]) => spawnSync(command!, [...args, 'true']).status === 0);

/** A process number above all that Linux gives. */
const NOBODY = 2 ** 22 + 1;

/** Returns the name of this process as an owner. */
async function ownName(number: number): Promise<string> {
  const directory = newFolder();
  const store = await openDiskStore({ directory });
  const name = nameIn(await readdir(directory));
  await store.close();
  return name.replace('-owner.1.', `-owner.${number}.`);
}

/** Returns the name of an owner of this machine that is gone. */
async function deadName(): Promise<string> {
  return (await ownName(1)).replace(/^shardweave-owner\.1\.\d+/, `${NOBODY}`);
}

/** The file that tells who the first owner is, among those of a directory. */
function nameIn(files: readonly string[]): string {
  return files.find((one) => /^shardweave-owner\.1\.\d/.test(one))!;
}

async function claim(directory: string, number: number, name: string): Promise<void> {
  for (const suffix of ['', `.${name}`]) {
    await writeFile(join(directory, `shardweave-owner.${number}${suffix}`), '');
  }
}

describe('owners', () => {
  it('keeps a second process out as long as the first lives', async () => {
    const directory = newFolder();
    const writer = new Writer(directory);
    await writer.prints(1);
    await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
    await expect(openDiskStore({ directory })).rejects.toThrow(/process \d+ on .* delete /);
    await expect(openDiskStore({ directory })).rejects.toMatchObject({
      owner: expect.stringMatching(/^process \d+ on [^,]+$/),
      file: undefined,
    });
    await writer.kill();
    await (await openDiskStore({ directory })).close();
  });

  it('keeps a second store of this process out until the first is closed', async () => {
    const directory = newFolder();
    for (let round = 0; round < 3; round++) {
      const store = await openDiskStore({ directory });
      await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
      await store.close();
    }
  });

  it('is known by empty files, of which none stays when it leaves', async () => {
    const directory = newFolder();
    const store = await openDiskStore({ directory });
    const names = (await readdir(directory)).filter((name) => !name.includes('.door.'));
    const owners = names.filter((name) => name.includes('owner')).sort();
    expect(owners).toEqual(['shardweave-owner.1', await ownName(1)]);
    for (const name of owners) {
      expect((await stat(join(directory, name))).size).toBe(0);
    }
    await store.close();
    expect((await readdir(directory)).join()).not.toContain('owner');
  });

  it('is asked for from outside without a trace', async () => {
    const directory = newFolder();
    const asked = async () => {
      const before = await readdir(directory);
      const answer = await hasOwner(nodeFiles, directory);
      expect(await readdir(directory)).toEqual(before);
      return answer;
    };
    expect(await asked()).toBe(false);
    const store = await openDiskStore({ directory });
    expect(await asked()).toBe(true);
    await store.close();
    await claim(directory, 1, await deadName());
    expect(await asked()).toBe(false);
    const [, , , , namespace, machine] = (await ownName(2)).split('.');
    await claim(directory, 2, `${NOBODY}.7.${namespace}.${machine}.elsewhere`);
    expect(await asked()).toBeUndefined();
    await writeFile(join(directory, 'shardweave-owner.3'), '');
    expect(await asked()).toBeUndefined();
  });

  it('lets in one of many that find a dead owner at the same time', async () => {
    const directory = newFolder();
    const [, , , , ...space] = (await ownName(7)).split('.');
    await claim(directory, 7, [NOBODY, 1, ...space].join('.'));
    const tries = Array.from({ length: 8 }, () => openDiskStore({ directory }));
    const outcomes = await Promise.allSettled(tries);
    const stores = outcomes.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
    expect(stores).toHaveLength(1);
    for (const one of outcomes) {
      if (one.status === 'rejected') {
        expect(one.reason).toBeInstanceOf(StoreLockedError);
      }
    }
    await stores[0]!.close();
  });

  it('withdraws where others came and went between its look and its claim', async () => {
    const directory = newFolder();
    await claim(directory, 1, await deadName());
    const files = interceptFiles(async ({ operation, path }) => {
      if (operation !== 'create' || !path.endsWith('.2')) {
        return;
      }
      // Number 2 belonged to a process that is gone, and 3 has the directory.
      for (const name of await readdir(directory)) {
        await unlink(join(directory, name));
      }
      await claim(directory, 3, (await ownName(3)).slice('shardweave-owner.3.'.length));
    });
    await expect(openDiskStore({ directory, files })).rejects.toThrow(StoreLockedError);
    expect((await readdir(directory)).sort()).toEqual(['shardweave-owner.3', await ownName(3)]);
  });

  it('withdraws where the numbers began again between its look and its claim', async () => {
    const directory = newFolder();
    await claim(directory, 1, await deadName());
    const files = interceptFiles(async ({ operation, path }) => {
      if (operation !== 'create' || !path.endsWith('.2')) {
        return;
      }
      // An owner came and went, and the next one has number 1.
      for (const name of await readdir(directory)) {
        await unlink(join(directory, name));
      }
      await claim(directory, 1, (await ownName(1)).slice('shardweave-owner.1.'.length));
    });
    await expect(openDiskStore({ directory, files })).rejects.toThrow(StoreLockedError);
    expect((await readdir(directory)).sort()).toEqual(['shardweave-owner.1', await ownName(1)]);
  });

  it('tells a process from another one with its number by when it started', async () => {
    const directory = newFolder();
    const [pid, start, ...host] = (await ownName(1)).slice('shardweave-owner.1.'.length).split('.');
    await claim(directory, 1, [pid, start, ...host].join('.'));
    await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
    if (start === '') {
      return; // This platform does not tell.
    }
    const later = newFolder();
    await claim(later, 1, [pid, '1', ...host].join('.'));
    await (await openDiskStore({ directory: later })).close();
  });

  it('is named by its number, its start and its machine', async () => {
    const directory = newFolder();
    const writer = new Writer(directory);
    await writer.prints(1);
    const name = nameIn(await readdir(directory));
    const [, , pid, start, ...host] = name.split('.');
    const [, , ownPid, ownStart, ...ownHost] = (await ownName(1)).split('.');
    expect([Number(pid), Number(ownPid)]).toEqual([writer.pid, process.pid]);
    expect(host).toEqual(ownHost);
    // On Linux the start is in ticks since boot, and this process started before the other.
    if (start !== '') {
      expect(Number(start)).toBeGreaterThan(Number(ownStart));
    }
    await writer.kill();
  });

  it('does not take an owner for dead that comes from another machine', async () => {
    const directory = newFolder();
    const [, , , , namespace, machine] = (await ownName(4)).split('.');
    await claim(directory, 4, `${NOBODY}.7.${namespace}.${machine}.else%2Fwhere.example`);
    await expect(openDiskStore({ directory })).rejects.toThrow(
      /on else\/where\.example, in another container or on another machine\. /,
    );
  });

  it.each([
    ['of one name in a directory on a network', 1],
    ['whose container has the same name', 0],
  ])('does not take an owner for dead on a machine %s', async (_, differing) => {
    const directory = newFolder();
    const [, , , , ...space] = (await ownName(4)).split('.');
    const other = space.map((part, i) => (i === differing ? '7' : part));
    await claim(directory, 4, [NOBODY, 7, ...other].join('.'));
    await expect(openDiskStore({ directory })).rejects.toThrow(/in another container or on/);
  });

  it.skipIf(UNSHARE === undefined)(
    'keeps a process out that has another space of process numbers, unless unshare is not permitted',
    async () => {
      const directory = newFolder();
      const store = await openDiskStore({ directory });
      const [command, ...args] = UNSHARE!;
      const other = spawnSync(command!, [...args, process.execPath, program, directory], {
        encoding: 'utf8',
        timeout: 10_000,
        killSignal: 'SIGKILL',
      });
      expect(other.stderr).toMatch(/StoreLockedError: lock: expected nobody else/);
      expect(other.stdout).toBe('');
      await store.close();
    },
  );

  it.skipIf(UNSHARE === undefined)(
    'lets in where the owner was killed that had another space of process numbers, unless unshare is not permitted',
    async () => {
      // A socket's path holds 107 bytes and is cut there, and people's directories may be longer.
      const directory = join(newFolder(), 'a'.repeat(60), 'b'.repeat(60));
      await mkdir(directory, { recursive: true });
      const writer = new Writer(directory, undefined, UNSHARE!);
      await writer.prints(1);
      expect((await readdir(directory)).join()).toMatch(/shardweave-owner\.1\.door\.\w+/);
      await expect(openDiskStore({ directory })).rejects.toThrow(/in another container or on/);
      await writer.kill();
      await (await openDiskStore({ directory })).close();
    },
  );

  it('takes over from an owner that was killed before it gave its name', async () => {
    const directory = newFolder();
    await writeFile(join(directory, 'shardweave-owner.1'), '');
    await (await openDiskStore({ directory })).close();
  });
});
