// References of --task dpo are found once for a base and its pairs: later runs take them from
// beside the tokens, unless anything that they depend on is another.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { RankEvent } from '../src/rank/events.js';
import { jsonlFile } from './support/jsonl-data.js';
import { runFlags } from './support/run-flags.js';

const PAIRS = [...'abcdefghij'].map((letter) => ({
  prompt: `${letter}? `,
  chosen: letter,
  rejected: letter.toUpperCase(),
}));
const { file, model } = jsonlFile(PAIRS, { config: { initializer_range: 0.3 } });

/** Runs a step or two beside a cache of the test's own. */
function runIn(cache: string) {
  return async (flags: string, onDoing?: (what: string) => void, signal?: AbortSignal) => {
    let found = 0;
    const line = `--task dpo --model ${model} --data ${file} --valid-fraction 0.3 --cache ${cache} ${flags}`;
    const rest =
      '--device cpu --threads 1 --products wasm --seq 24 --batch 7 --lora-rank 2 --lr 0.01';
    const record = await runFlags(`${line} ${rest}`.split(' '), {
      ...(signal && { signal }),
      onEvent: (event: RankEvent) => {
        if (event.type === 'doing' && event.what.startsWith('finding references')) {
          found += 1;
          onDoing?.(event.what);
        }
      },
    });
    return { found, figures: record.steps.map(({ loss, validLoss }) => [loss, validLoss]) };
  };
}
const kept = (cache: string) => {
  const [key] = readdirSync(join(cache, 'tokens'));
  const directory = join(cache, 'tokens', key!);
  return readdirSync(directory)
    .filter((name) => name.startsWith('references'))
    .map((name) => join(directory, name));
};

it('are found once, and give the same losses on any number of ranks', async () => {
  const cache = newFolder();
  const run = runIn(cache);
  const first = await run('--ranks 1 --steps 2');
  expect(first.found).toBe(10);
  expect(await run('--ranks 1 --steps 2')).toEqual({ ...first, found: 0 });
  const [path, ...others] = kept(cache);
  expect(others).toEqual([]);
  expect(readFileSync(path!).length).toBe(10 * 12);
  const three = await run('--ranks 3 --steps 2');
  expect(three.found).toBe(0);
  for (const [i, losses] of three.figures.entries()) {
    expect(losses[0]! / first.figures[i]![0]!).toBeCloseTo(1, 5);
  }
  // What another run has left there is taken as it is.
  const bytes = readFileSync(path!);
  new DataView(bytes.buffer, bytes.byteOffset).setFloat32(4, 50, true);
  writeFileSync(path!, bytes);
  expect((await run('--ranks 1 --steps 2')).figures).not.toEqual(first.figures);
});

it('are found anew in other rows or beside another base', async () => {
  const cache = newFolder();
  const run = runIn(cache);
  const flags = '--ranks 1 --steps 1';
  const counts: number[] = [];
  for (const more of ['', ' --seed 2', ' --base-type q8_0', '']) {
    counts.push((await run(flags + more)).found);
  }
  expect(counts).toEqual([10, 10, 10, 0]);
  expect(kept(cache)).toHaveLength(3);
});

it('stand there whole or not at all when a pass is ended, which waits for one pair', async () => {
  const cache = newFolder();
  const stop = new AbortController();
  const seen: string[] = [];
  const ended = runIn(cache)(
    '--ranks 1 --steps 1',
    (what) => {
      seen.push(what);
      if (seen.length === 3) {
        stop.abort(new Error('enough'));
      }
    },
    stop.signal,
  );
  await expect(ended).rejects.toThrow('enough');
  expect(seen).toHaveLength(3);
  expect(kept(cache)).toEqual([]);
  expect((await runIn(cache)('--ranks 1 --steps 1')).found).toBe(10);
  expect(kept(cache)).toHaveLength(1);
});
