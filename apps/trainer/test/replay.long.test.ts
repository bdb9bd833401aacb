// Many steps of runs on one to four ranks are computed again, and one poisoned row among 10,000 is
// found.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { replayStep } from '../src/again/replay-step.js';
import type { StepLine } from '../src/output/run-records.js';
import { splitMix32 } from '../src/seeded-random.js';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const tiny = `train ${tinyFlags(root)} --cache ${join(root, 'cache')} --quiet`;
const cli = (line: string) => runCli(line.split(' '));
const replayed = (run: string, step: number, withRows: boolean) =>
  replayStep(run, {
    ...{ step, withRows, entry: '', env: {}, signal: new AbortController().signal },
    onNote: () => {},
    onProgress: () => {},
  });

const STEPS = 60;
/** The steps that are computed again: 50 over all four runs. */
const COUNTS = [13, 13, 12, 12];

describe.each([1, 2, 3, 4])('a run on %i ranks', (ranks) => {
  it('has the bits of its losses and norms in steps that are computed again', async () => {
    const run = join(newFolder(), 'run');
    const flags = `--ranks ${ranks} --steps ${STEPS} --save-every 6 --keep 99 --hash-every 7`;
    expect(await cli(`${tiny} ${flags} --out ${run}`)).toMatchObject({ code: 0 });
    const lines = readFileSync(join(run, 'metrics.jsonl'), 'utf8').trim().split('\n');
    const next = splitMix32(ranks, 0);
    for (let i = 0; i < COUNTS[ranks - 1]!; i++) {
      const step = 1 + (next() % STEPS);
      const { metrics, difference } = await replayed(run, step, i % 3 === 0);
      const { loss, gradNorm } = JSON.parse(lines[step - 1]!) as StepLine;
      expect([metrics.loss, metrics.gradNorm, difference]).toEqual([loss, gradNorm, undefined]);
    }
  });
});

it('a poisoned row among 10,000 is first by gradient norm in its step', async () => {
  const folder = newFolder();
  const [data, run] = [join(folder, 'rows.jsonl'), join(folder, 'run')];
  const texts = Array.from({ length: 10_000 }, (_, i) => `row ${i % 10} ok`); // a row of 8 each
  texts[7321] = 'QZ#xJ~%@';
  writeFileSync(data, texts.map((text) => `${JSON.stringify({ text })}\n`).join(''));
  const flags = tiny.replace(/--data \S+/, `--data ${data}`);
  const way = '--ranks 2 --order sequential --steps 834 --save-every 200 --keep 9';
  expect(await cli(`${flags} ${way} --out ${run}`)).toMatchObject({ code: 0 });
  const step = Math.floor(7321 / 12) + 1;
  const { rows } = await replayed(run, step, true);
  expect(rows[0]!.texts[0]).toContain('QZ#xJ~%@');
  expect(rows[0]!.gradNorm).toBeGreaterThan(2 * rows[1]!.gradNorm);
});
