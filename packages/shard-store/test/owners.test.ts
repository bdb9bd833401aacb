// One owner a directory, and owners that are killed: real processes.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, stat, unlink, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { StoreLockedError } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { build } from 'esbuild';
import { beforeAll, describe, expect, it } from 'vitest';
import { newDirectory } from './directories.ts';

const WRITER = fileURLToPath(new URL('writer-process.mjs', import.meta.url));
const SOURCE = fileURLToPath(new URL('../src/node.ts', import.meta.url));
let entry = '';

beforeAll(async () => {
  entry = join(await newDirectory(), 'node.mjs');
  const options = { bundle: true, format: 'esm', platform: 'node', outfile: entry } as const;
  await build({ entryPoints: [SOURCE], ...options });
});

/** A process that writes steps into `directory`, with what it prints. */
class Writer {
  readonly #process: ChildProcess;
  readonly lines: string[] = [];

  constructor(directory: string) {
    const stdio = ['ignore', 'pipe', 'inherit'] as const;
    this.#process = spawn(process.execPath, [WRITER, entry, directory], { stdio: [...stdio] });
    this.#process.stdout!.on('data', (text: Buffer) => {
      this.lines.push(...String(text).split('\n').filter(Boolean));
    });
  }

  async prints(numLines: number): Promise<void> {
    while (this.lines.length < numLines) await once(this.#process.stdout!, 'data');
  }

  async kill(): Promise<void> {
    const gone = once(this.#process, 'close');
    this.#process.kill('SIGKILL');
    await gone;
  }
}

describe('a process that is killed in the middle of a step', () => {
  it('leaves its last whole step, and the directory to the next', { timeout: 60_000 }, async () => {
    const directory = await newDirectory();
    let numUnfinished = 0;
    for (let round = 0; round < 8; round++) {
      const writer = new Writer(directory);
      await writer.prints(2 + (round % 3));
      // Some way into the next step, at another place each round.
      await new Promise((resolve) => setTimeout(resolve, round));
      await writer.kill();
      const told = Number(writer.lines.at(-1));
      const store = await openDiskStore({ directory });
      expect([told, told + 1]).toContain(store.generation); // killed before it could say so
      for (const key of ['parameter', 'exp_avg', 'exp_avg_sq']) {
        const value = new Uint8Array(2 ** 21 + 5);
        await store.read(key, value);
        expect(value.every((byte) => byte === store.generation % 256)).toBe(true);
      }
      await store.close();
      numUnfinished += await countNewer(directory, told % 256);
    }
    expect(numUnfinished).toBeGreaterThan(0); // it was in the middle of a step at least once
  });
});

/** Files that begin with the step after `step`: their step was on its way when the kill came. */
async function countNewer(directory: string, step: number): Promise<number> {
  const names = (await readdir(directory)).filter((name) => /^\d{6}\.\d$/.test(name));
  const first = await Promise.all(
    names.map(async (name) => (await readFile(join(directory, name)))[0]),
  );
  return first.filter((byte) => byte === (step + 1) % 256).length;
}

/** Above what Linux gives to processes. */
const NOBODY = 2 ** 22 + 1;

/** What this process calls itself as an owner. */
async function ownName(number: number): Promise<string> {
  const directory = await newDirectory();
  const store = await openDiskStore({ directory });
  const name = (await readdir(directory)).find((one) => one.startsWith('owner.1.'))!;
  await store.close();
  return name.replace('owner.1.', `owner.${number}.`);
}

async function claim(directory: string, number: number, name: string): Promise<void> {
  for (const suffix of ['', `.${name}`]) {
    await writeFile(join(directory, `owner.${number}${suffix}`), '');
  }
}

describe('owners', () => {
  it('keeps a second process out as long as the first lives', async () => {
    const directory = await newDirectory();
    const writer = new Writer(directory);
    await writer.prints(1);
    await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
    await expect(openDiskStore({ directory })).rejects.toThrow(/process \d+ on .* delete /);
    await writer.kill();
    await (await openDiskStore({ directory })).close();
  });

  it('keeps a second store of this process out until the first is closed', async () => {
    const directory = await newDirectory();
    for (let round = 0; round < 3; round++) {
      const store = await openDiskStore({ directory });
      await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
      await store.close();
    }
    // The numbers rise, and only the last stays.
    const owners = (await readdir(directory)).sort();
    expect(owners).toEqual(['owner.3', await ownName(3), 'owner.3.released']);
    for (const name of owners) expect((await stat(join(directory, name))).size).toBe(0);
  });

  it('lets one of many in that find a dead owner at once', async () => {
    const directory = await newDirectory();
    await claim(directory, 7, `${NOBODY}.1.${hostname()}`);
    const tries = Array.from({ length: 8 }, () => openDiskStore({ directory }));
    const outcomes = await Promise.allSettled(tries);
    const stores = outcomes.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
    expect(stores).toHaveLength(1);
    for (const one of outcomes) {
      if (one.status === 'rejected') expect(one.reason).toBeInstanceOf(StoreLockedError);
    }
    await stores[0]!.close();
  });

  it('withdraws where others came and went between its look and its claim', async () => {
    const directory = await newDirectory();
    await (await openDiskStore({ directory })).close();
    const files = interceptFiles(async ({ operation, path }) => {
      if (operation !== 'create' || !path.endsWith('.2')) return;
      // Number 2 was another one's, gone since; 3 has the directory.
      for (const name of await readdir(directory)) await unlink(join(directory, name));
      await claim(directory, 3, (await ownName(3)).slice('owner.3.'.length));
    });
    await expect(openDiskStore({ directory, files })).rejects.toThrow(StoreLockedError);
    expect((await readdir(directory)).sort()).toEqual(['owner.3', await ownName(3)]);
  });

  it('tells a process from another one with its number by when it started', async () => {
    const directory = await newDirectory();
    const [pid, start, ...host] = (await ownName(1)).slice('owner.1.'.length).split('.');
    await claim(directory, 1, [pid, start, ...host].join('.'));
    await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
    if (start === '') return; // this platform does not tell
    const later = await newDirectory();
    await claim(later, 1, [pid, '1', ...host].join('.'));
    await (await openDiskStore({ directory: later })).close();
  });

  it('does not take an owner for dead that comes from another machine', async () => {
    const directory = await newDirectory();
    await claim(directory, 4, `${NOBODY}.7.else%2Fwhere.example`);
    await expect(openDiskStore({ directory })).rejects.toThrow(/on else\/where\.example/);
  });

  it('takes over from an owner that was killed before it gave its name', async () => {
    const directory = await newDirectory();
    await writeFile(join(directory, 'owner.1'), '');
    await (await openDiskStore({ directory })).close();
  });
});
