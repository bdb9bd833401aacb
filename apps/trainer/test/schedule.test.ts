import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { resolveConfig } from '../src/config/resolve-config.js';
import { learningRate } from '../src/schedule.js';
import { parseFlags } from './support/parse-flags.js';

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
  const config = {
    lr: 2,
    minLr: 0,
    schedule: 'cosine',
    warmup: 4,
    decaySteps: undefined,
    steps: 12,
  } as const;
  expect(learningRate(config, 0)).toBe(0.5);
  expect(learningRate(config, 3)).toBe(2);
  expect(learningRate(config, 4)).toBe(2);
  expect(learningRate(config, 8)).toBeCloseTo(1, 12);
  expect(learningRate(config, 11)).toBeCloseTo(1 + Math.cos((Math.PI * 7) / 8), 12);
});

it('wsd decays over so many steps, or over a part of them', async () => {
  const resolve = (line: string) =>
    resolveConfig(parseFlags(line.split(' ').filter(Boolean), () => {}));
  const wsd = '--schedule wsd --lr 2 --warmup 2 --steps 10';
  const config = await resolve(`${wsd} --decay-steps 4`);
  const rates = [0, 1, 2, 5, 6, 7, 8, 9].map((s) => learningRate(config, s));
  expect(rates).toEqual([1, 2, 2, 2, 2, 1.5, 1, 0.5]);
  expect(await resolve(`${wsd} --decay-steps 0.4`)).toMatchObject({ decaySteps: 4, warmup: 2 });
  expect(await resolve('--schedule wsd --steps 100')).toMatchObject({ decaySteps: 20, warmup: 10 });
  expect(await resolve('')).toMatchObject({ decaySteps: undefined });
});

it('warms up for 20 steps, or a tenth of a short run', async () => {
  const warmupOf = async (line: string) =>
    (await resolveConfig(parseFlags(line.split(' '), () => {}))).warmup;
  for (const [steps, warmup] of [
    [1, 1],
    [24, 2],
    [200, 20],
    [480, 20],
  ]) {
    expect(await warmupOf(`--steps ${steps}`), `${steps} steps`).toBe(warmup);
  }
  expect(await warmupOf('--steps 24 --warmup 20')).toBe(20);
});

it('falls to --min-lr, which the warm-up does not know', async () => {
  const resolve = (line: string) => resolveConfig(parseFlags(line.split(' '), () => {}));
  const common = '--lr 2 --min-lr 0.5 --warmup 2 --steps 10';
  const wsd = await resolve(`${common} --schedule wsd --decay-steps 3`);
  const rates = [0, 1, 2, 7, 8, 9, 10].map((s) => learningRate(wsd, s));
  expect(rates).toEqual([1, 2, 2, 2, 1.5, 1, 0.5]);
  const cosine = await resolve(common);
  expect(learningRate(cosine, 6)).toBeCloseTo(1.25, 12);
  expect(learningRate(cosine, 10)).toBe(0.5);
  await expect(resolve('--lr 1e-3 --min-lr 0.01')).rejects.toThrow(
    '--min-lr 0.01 is above --lr 0.001. Give a lower one, or a higher --lr.',
  );
});
