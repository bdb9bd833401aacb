// Runs that end before their last step leave the same files as a whole run.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const folder = newFolder();

const QUICK = `train --model nano --data ${ROOT}tooling/reference/data/tiny/text.txt --device cpu --seq 16 --batch 4 --steps 100000`;

it.each([
  // After the first step the clock has exceeded it on any machine.
  ['time', '--time-limit 0.001s --ranks 2', 1, '--time-limit is over'],
  [
    'patience',
    // At a learning rate of 0 no evaluation improves on the first.
    '--patience 2 --eval-every 1 --valid-fraction 0.1 --lr 0 --strategy single --save-every 100',
    3,
    '2 evaluations in a row had no lower loss (--patience)',
  ],
])('a run ends early by %s', async (name, flags, step, reason) => {
  const out = join(folder, name);
  const { code, out: said, err } = await runCli(`${QUICK} ${flags} --out ${out}`.split(' '));
  expect({ code, err }).toEqual({ code: 0, err: '' });
  const line = `Done after step ${step} of 100000: ${reason}.`;
  expect(said).toContain(`\n${line}\n`);
  expect(said).toContain(`The run is in ${out}.`);
  const lines = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trim().split('\n');
  expect(lines).toHaveLength(step);
  const last = readFileSync(join(out, 'events.jsonl'), 'utf8').trim().split('\n').at(-1)!;
  expect(JSON.parse(last)).toMatchObject({ type: 'runEnd', end: 'done', reason: line });
  for (const left of ['summary.json', 'config.yaml', 'model/model.safetensors']) {
    expect(existsSync(join(out, left)), left).toBe(true);
  }
  expect(existsSync(join(out, 'saves'))).toBe(name === 'patience');
});

it.each([
  [
    '--patience 2',
    '--patience is for --valid or --valid-fraction, which is not given. Use --valid or',
  ],
  [
    '--decay-steps 5',
    '--decay-steps is for --schedule wsd, got --schedule cosine. Use --schedule wsd,',
  ],
  ['--schedule wsd --decay-steps 100001', '--decay-steps 100001 is more than all 100000 steps.'],
  ['--time-limit 30', '--time-limit: expected a time such as 90s, 30m or 2h, got "30".'],
  ['--time-limit 0s', '--time-limit: expected a time such as'],
])('%s is refused', async (flags, expected) => {
  const { code, err } = await runCli(`${QUICK} ${flags}`.split(' '));
  expect(code).toBe(2);
  expect(err).toContain(expected);
});
