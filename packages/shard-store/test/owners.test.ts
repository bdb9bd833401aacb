// One owner a directory, and owners that are killed: real processes.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, rename, writeFile } from 'node:fs/promises';
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
    const owners = (await readdir(directory)).filter((name) => name.startsWith('owner.'));
    expect(owners).toEqual(['owner.3']); // the numbers rise, and only the last stays
  });

  it('lets one of many in that find a dead owner at once', async () => {
    const directory = await newDirectory();
    const dead = { pid: 2 ** 22 + 1, host: (await import('node:os')).hostname(), startTime: '1' };
    await writeFile(join(directory, 'owner.7'), JSON.stringify(dead));
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
    const path = (number: number) => join(directory, `owner.${number}`);
    const { released: _, ...living } = JSON.parse(await readFile(path(1), 'utf8'));
    const files = interceptFiles(async (call) => {
      if (call.operation !== 'create') return;
      // Number 2 was another one's, gone since; 3 has the directory.
      await rename(path(1), path(3));
      await writeFile(path(3), JSON.stringify(living));
    });
    await expect(openDiskStore({ directory, files })).rejects.toThrow(StoreLockedError);
    expect(await readdir(directory)).toEqual(['owner.3']);
  });

  it('tells a process from another one with its number by when it started', async () => {
    const directory = await newDirectory();
    const store = await openDiskStore({ directory });
    await store.close();
    const path = join(directory, 'owner.1');
    const record = JSON.parse(await readFile(path, 'utf8'));
    const living = { ...record, released: undefined };
    await writeFile(path, JSON.stringify(living));
    await expect(openDiskStore({ directory })).rejects.toThrow(StoreLockedError);
    if (record.startTime === null) return; // this platform does not tell
    await writeFile(path, JSON.stringify({ ...living, startTime: '1' }));
    await (await openDiskStore({ directory })).close();
  });

  it('does not take a record for dead that comes from another machine', async () => {
    const directory = await newDirectory();
    const record = { pid: 2 ** 22 + 1, host: 'elsewhere', startTime: null };
    await writeFile(join(directory, 'owner.4'), JSON.stringify(record));
    await expect(openDiskStore({ directory })).rejects.toThrow(/on elsewhere/);
  });

  it('takes over from an owner that was killed before it wrote its record', async () => {
    const directory = await newDirectory();
    await writeFile(join(directory, 'owner.1'), '{"pid":');
    await (await openDiskStore({ directory })).close();
  });
});
