import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { parseFlags } from '../src/flags.js';
import { resolveConfig } from '../src/resolve-config.js';
import { learningRate } from '../src/schedule.js';

const ROOT = new URL('../../../', import.meta.url).pathname;
const { cases } = JSON.parse(
  readFileSync(`${ROOT}tooling/reference/data/tiny/expected.json`, 'utf8'),
) as { cases: { name: string; flags: string[]; lrs: number[]; skipped: boolean[] }[] };

it.each(cases)("the rates of $name are the reference script's", async ({ flags, lrs, skipped }) => {
  const config = await resolveConfig(
    parseFlags(
      flags.map((flag) => (flag.startsWith('tooling/') ? ROOT + flag : flag)),
      () => {},
    ),
  );
  for (const [step, lr] of lrs.entries()) {
    const updates = skipped.slice(0, step).filter((isSkipped) => !isSkipped).length;
    expect(learningRate(config, updates)).toBeCloseTo(lr, 9);
  }
});

it('warms up from lr / W, peaks at lr and ends near 0', () => {
  const config = { lr: 2, schedule: 'cosine', warmup: 4, steps: 12 } as const;
  expect(learningRate(config, 0)).toBe(0.5);
  expect(learningRate(config, 3)).toBe(2);
  expect(learningRate(config, 4)).toBe(2);
  expect(learningRate(config, 8)).toBeCloseTo(1, 12);
  expect(learningRate(config, 11)).toBeCloseTo(1 + Math.cos((Math.PI * 7) / 8), 12);
});
