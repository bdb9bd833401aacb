// These tests do to a run that has ended or is at work what people do, and check what the run then
// says.

import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { lockDirectory, nodeFiles } from '@shardweave/shard-store/node';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const train = `train ${tinyFlags(root)} --strategy single`;
const run = (line: string, options: Parameters<typeof runCli>[1] = {}) =>
  runCli(line.split(' '), options);

it('a run that was killed behind its last step says that nothing is left, and how to train on', async () => {
  const line = `${train} --out ${join(root, 'done')} --save-every 2`;
  await run(`${line} --steps 2`);
  rmSync(join(root, 'done/summary.json'));
  const again = await run(`${line} --steps 2 --resume auto`);
  expect(again).toMatchObject({ code: 0, err: '' });
  expect(again.out).toMatch(
    /^Going on from .*\nAll 2 steps are done: nothing is left to train\. Give more --steps to train on\.$/m,
  );
  const more = await run(`${line} --steps 3 --resume auto`);
  expect(more.out).not.toContain('nothing is left');
});

it('a run that diverges is not started again, and says what to change', async () => {
  const line = `${train} --lr 1e30 --warmup 0 --clip 0 --save-every 1 --max-restarts 2`;
  const { code, out, err } = await run(`${line} --steps 5 --out ${join(root, 'diverged')}`);
  expect(code).toBe(1);
  expect(err).toMatch(
    /^error: The loss is not a number at step 2: the run diverged\. Use a smaller --lr, .*\n$/,
  );
  expect(out).not.toContain('Starting again');
});

it('a run whose lines are removed meanwhile is done, and leaves out its page', async () => {
  const out = join(root, 'cleared');
  const result = await run(`${train} --steps 2 --out ${out}`, {
    onOut: (text) => {
      if (text.startsWith('step 2/')) {
        rmSync(join(out, 'metrics.jsonl'));
      }
    },
  });
  expect(result.code).toBe(0);
  expect(result.err).toMatch(
    /^warning: report\.html is left out: .* holds no run \(metrics\.jsonl is missing\)\..*\n$/,
  );
});

it('a run that is at work is not told to be removed before its first save', async () => {
  const out = join(root, 'busy');
  mkdirSync(out);
  writeFileSync(join(out, 'events.jsonl'), '');
  const { release } = await lockDirectory(nodeFiles, out);
  for (const more of ['', ' --save-every 1', ' --save-every 1 --resume auto']) {
    const { code, err } = await run(`${train} --steps 2 --out ${out}${more}`);
    expect([code, err]).toEqual([2, expect.stringMatching(/another command is at work in .*busy/)]);
  }
  await release();
  const { err } = await run(`${train} --steps 2 --out ${out}`);
  expect(err).toMatch(/already holds a run that ended before its first save/);
});
