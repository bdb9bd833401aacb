// These tests check what a run leaves in --offload-dir, and finds there.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openDiskStore } from '@shardweave/shard-store/node';
import { beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import type { RankEvent } from '../src/rank/events.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT, runFlags } from './support/run-flags.js';

let directory: string;
beforeEach(() => {
  directory = newFolder();
});

const QUICK = `--device cpu --model nano --data ${ROOT}tooling/reference/data/tiny/text.txt --seq 16 --batch 12`;

async function losses(flags: string): Promise<number[]> {
  const { steps } = await runFlags(`${QUICK} ${flags}`.split(' '));
  return steps.map(({ loss }) => loss);
}

const resolve = (flags: string) => resolveConfig(parseFlags(flags.split(' '), () => {}));

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
      // The run there has taken one step.
      await expect(losses(flags)).rejects.toThrow(/--fresh/);
    },
  );

  it('a directory with weights that do not fit is free again', async () => {
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
