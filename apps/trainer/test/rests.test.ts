// What runs leave on disk beside a model, and find there: fsdp's shards, and the state of --offload-dir.

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openDiskStore } from '@shardweave/shard-store/node';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { UsageError } from '../src/errors.js';
import { parseFlags } from '../src/flags.js';
import type { RankEvent } from '../src/rank/events.js';
import { resolveConfig } from '../src/resolve-config.js';
import { ROOT, runFlags, worstRatio } from './fixtures/run-flags.js';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'trainer-rests-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

const QUICK = `--device cpu --model nano --data ${ROOT}tooling/reference/data/tiny/text.txt --seq 16 --batch 12`;
const CONSTANT = '--schedule constant --lr 0.01';

async function losses(flags: string): Promise<number[]> {
  const { steps } = await runFlags(`${QUICK} ${flags}`.split(' '));
  return steps.map(({ loss }) => loss);
}

const resolve = (flags: string) => resolveConfig(parseFlags(flags.split(' '), () => {}));

describe('shards', () => {
  it('saved by two ranks go on under any number of them, with the optimizer where it was', async () => {
    const shards = join(directory, 'shards');
    const out = join(directory, 'run');
    await losses(`${CONSTANT} --steps 3 --ranks 2 --save-shards ${shards} --out ${out}`);
    const loaded = `${CONSTANT} --steps 3 --load-shards ${shards}`;
    const two = await losses(`${loaded} --ranks 2`);
    const three = await losses(`${loaded} --ranks 3`);
    expect(worstRatio(three, two)).toBeLessThan(2e-6);
    const weightsAlone = await losses(`${CONSTANT} --steps 3 --model ${out}`);
    expect(worstRatio(weightsAlone.slice(0, 1), two.slice(0, 1))).toBeLessThan(2e-6);
    expect(worstRatio(weightsAlone.slice(2), two.slice(2))).toBeGreaterThan(1e-4);
    // Options of the optimizer are those of this run, not of the save.
    const decayed = await losses(`${loaded} --ranks 2 --weight-decay 5`);
    expect(decayed[0]).toBe(two[0]);
    expect(worstRatio(decayed.slice(2), two.slice(2))).toBeGreaterThan(1e-4);
    await expect(resolve(`--save-shards ${shards}`)).rejects.toThrow(UsageError);
  });

  it('saved by any strategy go on with any other, as those of one do', async () => {
    const strategies = ['single', 'ddp --ranks 3', 'offload --slices 2', 'fsdp --ranks 2'];
    const goOn = async (by: string, next: string) => {
      const shards = join(directory, by);
      await runFlags([
        ...`${QUICK} ${CONSTANT} --steps 2 --strategy ${by} --save-shards`.split(' '),
        shards,
      ]);
      const flags = `${QUICK} ${CONSTANT} --steps 3 --strategy ${next} --load-shards`.split(' ');
      return (await runFlags([...flags, shards])).steps.map(({ loss }) => loss);
    };
    const [first, ...others] = strategies.map((by, i) => {
      return [by, strategies[(i + 1) % strategies.length]!] as const;
    });
    const expected = await goOn(...first!);
    for (const [by, next] of others) {
      expect(worstRatio(await goOn(by, next), expected), `${by} to ${next}`).toBeLessThan(2e-6);
    }
  });

  it('of another model are refused with their directory', async () => {
    const shards = join(directory, 'shards');
    await losses(`--steps 1 --save-shards ${shards}`);
    const config = `--device cpu --model micro --batch 2 --seq 8 --steps 1 --load-shards ${shards}`;
    const run = runFlags(config.split(' '));
    await expect(run).rejects.toThrow(UsageError);
    await expect(run).rejects.toThrow(`--load-shards: ${shards} can't be used`);
  });

  it('that one rank finds damaged are refused as its own error says', async () => {
    const shards = join(directory, 'shards');
    await losses(`--ranks 2 --steps 1 --save-shards ${shards}`);
    const file = readdirSync(shards).find((name) => name.includes('rank-0'))!;
    const bytes = readFileSync(join(shards, file));
    bytes[bytes.byteLength - 1]! ^= 1;
    writeFileSync(join(shards, file), bytes);
    const run = losses(`--ranks 2 --steps 1 --load-shards ${shards}`);
    await expect(run).rejects.toThrow(UsageError);
    await expect(run).rejects.toThrow(/can't be used\. .*expected checksum/);
  });

  it.each([['--load-shards /nowhere', 'holds no save that ended']])(
    'are refused before a run: %s',
    async (flags, message) => {
      await expect(resolve(flags)).rejects.toThrow(UsageError);
      await expect(resolve(flags)).rejects.toThrow(message);
    },
  );
});

describe('--offload-dir', () => {
  it.each(['--strategy offload', '--ranks 2'])(
    '%s: an earlier state is deleted by order alone',
    async (strategy) => {
      const flags = `${strategy} --steps 2 --offload-dir ${directory}`;
      const first = await losses(flags);
      const place = strategy === '--ranks 2' ? join(directory, 'rank1') : directory;
      const keysOf = async () => {
        const store = await openDiskStore({ directory: place });
        const keys = [...store.keys()].sort();
        await store.close();
        return keys;
      };
      const keys = await keysOf();
      expect(keys.length).toBeGreaterThan(0);
      const again = losses(flags);
      await expect(again).rejects.toThrow(/holds the state of an earlier run/);
      await expect(again).rejects.toThrow(/--fresh/);
      expect(await keysOf()).toEqual(keys);
      expect(await losses(`${flags} --fresh`)).toEqual(first);
    },
  );

  it.each(['--strategy offload', '--ranks 2'])(
    '%s: a run that ends before its first step leaves nothing to protect',
    async (strategy) => {
      const flags = `${strategy} --steps 2 --offload-dir ${directory}`;
      const endAt = async (type: RankEvent['type']) => {
        const stop = new AbortController();
        const onEvent = (event: RankEvent) =>
          event.type === type && stop.abort(new Error('enough'));
        const run = runFlags(`${QUICK} ${flags}`.split(' '), { signal: stop.signal, onEvent });
        await expect(run).rejects.toThrow('enough');
      };
      await endAt('ready');
      await endAt('step');
      // That one was trained by a step.
      await expect(losses(flags)).rejects.toThrow(/--fresh/);
    },
  );

  it('with weights that do not fit is free again', async () => {
    const model = join(directory, 'model');
    await losses(`--steps 1 --strategy single --out ${model}`);
    const config = JSON.parse(readFileSync(join(model, 'model/config.json'), 'utf8'));
    writeFileSync(join(model, 'model/config.json'), JSON.stringify({ ...config, n_inner: 24 }));
    const rest = join(directory, 'rest');
    const flags = `--strategy offload --steps 1 --offload-dir ${rest}`;
    await expect(losses(`${flags} --model ${model}`)).rejects.toThrow(/--model: .* can't be used/);
    expect(await losses(flags)).toHaveLength(1);
  });

  it('--fresh without a directory says so', async () => {
    await expect(resolve('--strategy offload --fresh')).rejects.toThrow(
      '--fresh is for --offload-dir',
    );
    expect(readdirSync(directory)).toEqual([]);
  });
});
