// A save that fails leaves the earlier saves as they were, and its error says how it failed.

import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { openSave } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createMemoryGroup, PeerFailedError } from '@shardweave/collectives';
import type { CapturedModule } from '@shardweave/nn';
import { StoreFullError } from '@shardweave/shard-store';
import type { FileLayer } from '@shardweave/shard-store/node';
import { diskFull, interceptFiles } from '@shardweave/shard-store/testing-node';
import { beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { UsageError } from '../src/errors.js';
import { stepsIn } from '../src/files/save-directory.js';
import { lockRun } from '../src/saves/run-lock.js';
import { RunSaves, type RunSavesOptions } from '../src/saves/run-saves.js';
import { writeCaptured } from '../src/saves/write-save.js';
import { parseFlags } from './support/parse-flags.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const root = newFolder();
let directory: string;
beforeEach(() => {
  directory = newFolder();
});

/** Returns half of a tensor with 40 elements. */
function captured(rank: number): CapturedModule {
  const values = Float32Array.from({ length: 40 }, (_, i) => i);
  const read = async (start: number, end: number) =>
    new Uint8Array(values.slice(start, end).buffer);
  const spec = { kind: 'parameter', name: 'weight', dtype: 'f32', shape: [40] } as const;
  const optimizer = { kind: 'AdamW', steps: rank === 0 ? { weight: 3 } : {}, groups: [] };
  const pieces = async function* () {
    yield { ...spec, start: rank * 20, end: rank * 20 + 20, read };
  };
  return { isWriting: true, pieces: pieces(), optimizer, waitMs: 0, release: async () => {} };
}

/** Makes a save of two ranks. `files` is the file layer of the second one. */
function save(step: number, files?: FileLayer) {
  return Promise.all(
    createMemoryGroup(2).map((group, rank) =>
      writeCaptured(captured(rank), {
        ...{ directory, step, group, extra: { step } },
        files: rank === 1 ? files : undefined,
      }),
    ),
  );
}

async function expectWhole(step: number): Promise<void> {
  const found = await openSave(pieceDirectory(join(directory, `step-00000${step}`)));
  const values = new Float32Array(40);
  const write = (start: number, bytes: Uint8Array) =>
    new Uint8Array(values.buffer).set(bytes, start * 4);
  const spec = { kind: 'parameter', name: 'weight', dtype: 'f32', shape: [40] } as const;
  const piece = { ...spec, start: 0, end: 40, write };
  await found.verify([piece]);
  await found.fill([piece]);
  expect(values.every((value, i) => value === i)).toBe(true);
  expect(found.extra).toEqual({ step });
  expect(found.optimizer!.steps).toEqual({ weight: 3 });
}

const configOf = (flags: string) =>
  resolveConfig(parseFlags(`${tinyFlags(root)} ${flags}`.split(' '), () => {}));

const TOKENS = {
  train: [{ directory: 'tokens', name: undefined, share: 1 }],
  valid: undefined,
};

describe('a disk that fills up at any call of a rank', () => {
  it('fails the save on all ranks, and leaves the one before and nothing else', async () => {
    expect(await save(1)).toMatchObject([{ bytes: 160 }, { bytes: 160 }]);
    let isFull = true;
    for (let count = 0; isFull; count++) {
      let calls = 0;
      const files = interceptFiles(({ path }) => {
        calls += 1;
        if (calls > count) {
          throw diskFull(path);
        }
      });
      const outcomes = await save(2, files);
      isFull = calls > count;
      if (isFull) {
        const failure = expect.stringMatching(
          /^rank 1: \S+step-000002 finds no room, where .* are free \(ENOSPC: no space left/,
        );
        expect(outcomes).toEqual([{ failure }, { failure }]);
        expect(readdirSync(directory)).toEqual(['step-000001']);
      }
    }
    await expectWhole(1);
    await expectWhole(2);
    expect(readdirSync(directory).sort()).toEqual(['step-000001', 'step-000002']);
  });

  it('a second save of a step sets the first one aside', async () => {
    await save(1);
    await save(1);
    await expectWhole(1);
    expect(readdirSync(directory).sort()).toEqual(['step-000001', 'step-000001.aside']);
  });
});

describe('a run', () => {
  it('goes on where a save fails, and says so', async () => {
    const out = join(directory, 'run');
    const flags = `${tinyFlags(root)} --steps 3 --out ${out} --save-every 1 --keep 9`;
    const { steps, saves, warnings } = await runLine(flags, {
      onEvent: (event) => {
        if (event.type === 'save') {
          // No directory can be made inside a file.
          rmSync(join(out, 'saves'), { recursive: true });
          writeFileSync(join(out, 'saves'), '');
        }
      },
    });
    expect(steps).toHaveLength(3);
    expect(saves.map(({ step }) => step)).toEqual([1]);
    expect(warnings).toEqual([
      expect.stringMatching(/^The save of step 2 failed: rank 0: E/),
      expect.stringMatching(/^The save of step 3 failed: rank 0: E/),
    ]);
  });

  it('goes on where its state on disk can not be pinned for a save', async () => {
    const groups = createMemoryGroup(2);
    const texts: string[] = [];
    const full = new StoreFullError('pin of a: expected room on the disk, got none.');
    const told = new PeerFailedError('captureCheckpoint: rank 1 failed.', {
      ...{ rank: 1, operation: 'captureCheckpoint', reason: full.message },
    });
    const failing = (error: Error) => async (): Promise<CapturedModule> => {
      throw error;
    };
    await Promise.all(
      groups.map(async (group, rank) => {
        const background = await group.split(0);
        const config = await configOf(`--out ${directory} --save-every 1`);
        let capture = failing(rank === 1 ? full : told);
        const saves = await RunSaves.open({
          config: { ...config, tokens: TOKENS },
          saving: { capture: () => capture() },
          ...{ group, background, numericClass: 'cpu', base: undefined },
          wrapUp: new AbortController().signal,
          emit: (event) => {
            const text = event.type === 'warning' ? event.text : `${event.type}`;
            texts.push(`rank ${rank}: ${text}`);
          },
        });
        await saves.after({ step: 1, updates: 1, loss: 1, isLast: false });
        capture = async () => captured(rank);
        await saves.after({ step: 2, updates: 2, loss: 1, isLast: false });
        await saves.settle();
        capture = failing(new Error('the device is lost'));
        await expect(saves.after({ step: 3, updates: 3, loss: 1, isLast: false })).rejects.toThrow(
          /lost/,
        );
      }),
    );
    expect(texts).toEqual([
      'rank 0: The save of step 1 failed: captureCheckpoint: rank 1 failed.',
      'rank 0: save',
    ]);
    expect(await stepsIn(join(directory, 'saves'))).toEqual([2]);
  });

  it('is one command at a time', async () => {
    const config = await configOf(`--out ${directory} --save-every 5`);
    const held = await lockRun(config);
    const second = lockRun({ ...config, resume: 'auto' });
    await expect(second).rejects.toThrow(UsageError);
    await expect(second).rejects.toThrow(
      `--out: another command is at work in ${directory}, process ${process.pid} on ${hostname()}. Wait for it, or choose another directory.`,
    );
    await held[Symbol.asyncDispose]();
    await (await lockRun({ ...config, resume: 'auto' }))[Symbol.asyncDispose]();
    const elsewhere = join(directory, 'shardweave-owner.1.7.5.1.2.whale');
    writeFileSync(join(directory, 'shardweave-owner.1'), '');
    writeFileSync(elsewhere, '');
    await expect(lockRun({ ...config, resume: 'auto' })).rejects.toThrow(
      `process 7 on whale, in another container or on another machine. Wait for it, or choose another directory. If that one is gone, remove ${elsewhere}.`,
    );
  });

  it('a run with saves is not begun anew', async () => {
    const saved = join(directory, 'saved');
    await runLine(`${tinyFlags(root)} --steps 1 --out ${saved} --save-every 1`);
    rmSync(join(saved, 'model'), { recursive: true });
    const again = lockRun(await configOf(`--out ${saved} --save-every 1`));
    await expect(again).rejects.toThrow(/already holds a run with saves.*--resume auto/);
  });

  it('a run whose ranks do not share a directory is refused before its first step', async () => {
    const options = await Promise.all(
      createMemoryGroup(2).map(async (background, rank): Promise<RunSavesOptions> => {
        const config = await configOf(`--out ${directory}/host${rank} --save-every 5`);
        return {
          config: { ...config, tokens: TOKENS },
          ...{ background, group: background, emit: () => {}, numericClass: 'cpu' },
          ...{ base: undefined, wrapUp: new AbortController().signal },
        } as unknown as RunSavesOptions;
      }),
    );
    const opened = await Promise.allSettled(options.map((each) => RunSaves.open(each)));
    for (const outcome of opened) {
      const { reason } = outcome as PromiseRejectedResult;
      expect(reason).toBeInstanceOf(UsageError);
      expect(String(reason)).toMatch(
        /rank 1 on \S+ does not see .*\/host\d\/saves of rank 0 on \S+\./,
      );
    }
    expect(readdirSync(join(directory, 'host0/saves'))).toEqual([]);
  });
});

describe('--save-every in minutes', () => {
  it('saves by the clock of the first rank', async () => {
    const steps: number[][] = [[], []];
    const groups = createMemoryGroup(2);
    const clocks = [
      [0, 0, 61_000, 61_000, 62_000, 100_000, 130_000],
      [0, 0, 0, 0, 0, 0, 0],
    ];
    await Promise.all(
      groups.map(async (group, rank) => {
        const background = await group.split(0);
        const config = await configOf(`--out ${directory} --save-every 1m`);
        let at = 0;
        const saves = await RunSaves.open({
          config: { ...config, tokens: TOKENS },
          saving: { capture: async () => captured(rank) },
          ...{ group, background, numericClass: 'cpu', base: undefined },
          wrapUp: new AbortController().signal,
          now: () => clocks[rank]![at]!,
          emit: (event) => event.type === 'save' && steps[rank]!.push(event.save.step),
        });
        for (at = 1; at < 7; at++) {
          await saves.after({ step: at, updates: at, loss: 1, isLast: false });
        }
        await saves.settle();
      }),
    );
    expect(steps).toEqual([[2, 6], []]);
  });
});

describe('--keep 1', () => {
  it('leaves the last good save until a newer one is good', async () => {
    const config = await configOf(`--out ${directory} --save-every 1 --keep 1`);
    const ranks = await Promise.all(
      createMemoryGroup(2).map(async (group, rank) =>
        RunSaves.open({
          config: { ...config, tokens: TOKENS },
          saving: { capture: async () => captured(rank) },
          ...{ group, background: await group.split(0), numericClass: 'cpu', base: undefined },
          ...{ wrapUp: new AbortController().signal, emit: () => {} },
        }),
      ),
    );
    const onAll = <T>(work: (saves: RunSaves) => Promise<T>) => Promise.all(ranks.map(work));
    const inDirectory = () => stepsIn(join(directory, 'saves'));
    const kept = async (step: number, loss: number, best?: { step: number; validLoss: number }) => {
      await onAll((saves) => saves.after({ step, updates: step, loss, best, isLast: false }));
      await onAll((saves) => saves.settle());
      return inDirectory();
    };
    expect(await kept(1, 5)).toEqual([1]);
    expect(await kept(2, 5)).toEqual([1, 2]);
    expect(await kept(3, 5)).toEqual([2, 3]);
    // A step that was skipped because the loss overflowed tells nothing, and nothing has changed.
    expect(await kept(4, Number.NaN)).toEqual([2, 3]);
    expect(await kept(5, 5)).toEqual([3, 5]);
    await onAll(async (saves) => saves.prove());
    await onAll((saves) => saves.settle());
    expect(await inDirectory()).toEqual([5]);
    expect(await kept(6, 5)).toEqual([5, 6]);
    const [text, same] = await onAll((saves) => saves.setUnprovenAside());
    expect(text).toMatch(
      /step-000006 was not good and is kept as \S+step-000006\.aside\. .*step-000005: convert/,
    );
    expect(same).toBe(text);
    expect(await inDirectory()).toEqual([5]);
    // The best one stays until the save of a better one is good.
    const [first, better] = [7, 9].map((step) => ({ step, validLoss: 10 - step }));
    expect(await kept(7, 5, first)).toEqual([5, 7]);
    expect(await kept(8, 5, first)).toEqual([7, 8]);
    expect(await kept(9, 5, better)).toEqual([7, 8, 9]);
    expect(await kept(10, 5, better)).toEqual([9, 10]);
  });
});
