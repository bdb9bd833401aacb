// What the page makes of records before it draws: places, ranges, ticks, means, layers and looks.

import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { RunRecord, StepLine } from '../src/output/run-records.js';
import { differing } from '../src/page/compare-view.js';
import { mixed, NUM_RUN_COLORS, RUN_DASHES } from '../src/page/look/palette.js';
import type { Chart } from '../src/page/plot/charts.js';
import { CHARTS } from '../src/page/plot/charts.js';
import { csvOf, fileName } from '../src/page/plot/export.js';
import { drawnOf, layersOf, lookOf, valueAt } from '../src/page/plot/layers.js';
import { logTicks, numOutside, rangeOf } from '../src/page/plot/scale.js';
import { ownSmoothing, smoothed } from '../src/page/plot/smoothing.js';
import { stepAxis, tickTexts, workSeconds } from '../src/page/plot/x-axis.js';
import { RunModel } from '../src/page/run/run-model.js';
import { thinned } from '../src/page/sparklines.js';

const lineOf = (step: number, over: Partial<StepLine> = {}): StepLine => ({
  ...{ step, loss: 3, targets: 64, gradNorm: 1, lr: 1e-3, lossScale: 1, skipped: false },
  ...{ stepMs: 100, tokensPerSecond: 640, atMs: 1000 + 100 * step },
  ...over,
});
const stepOf = (step: number, over: Partial<StepLine> = {}): RunRecord => ({
  type: 'step',
  ...lineOf(step, over),
});
const modelOf = (records: readonly RunRecord[], name = 'run', isLive = true) => {
  const run = new RunModel(name, { isLive });
  for (const record of records) {
    run.add(record);
  }
  return run;
};
const beginning: RunRecord = { type: 'run', title: 'a run', steps: 90, ranks: 1, atMs: 1000 };
const loss = CHARTS.find(({ id }) => id === 'loss') as Chart;
const every = (count: number, value: (i: number) => number) =>
  Array.from({ length: count }, (_, i) => value(i));

describe('the range', () => {
  const whole = (columns: readonly (number | null)[][]) => ({
    from: 0,
    to: columns[0]!.length - 1,
  });

  it('is not flattened by a spike, which it counts', () => {
    const values = every(200, (i) => (i === 77 ? 170 : 1 + (i % 10) / 10));
    const range = rangeOf([values], whole([values]))!;
    expect(range.high).toBeLessThan(3);
    expect(range.low).toBeLessThan(1);
    expect(numOutside([values], range, whole([values]))).toBe(1);
    const all = rangeOf([values], { ...whole([values]), isWhole: true })!;
    expect(all.high).toBeGreaterThan(170);
    expect(numOutside([values], all, whole([values]))).toBe(0);
  });

  it('has every series in it, a short one and one far from the others, too', () => {
    const near = every(200, (i) => 1 + (i % 10) / 10);
    const far = near.map((value) => value + 50);
    const few = near.map((_, i) => (i % 100 === 0 ? 90 : null));
    const range = rangeOf([near, far, few], whole([near]))!;
    expect(numOutside([near, far, few], range, whole([near]))).toBe(0);
  });

  it('is that of the part which is visible', () => {
    const range = rangeOf([every(100, (i) => i)], { from: 10, to: 19 })!;
    expect(range.low).toBeCloseTo(10 - 0.45);
    expect(range.high).toBeCloseTo(19 + 0.45);
  });

  it('is above zero where the axis is logarithmic, and there is none without a value', () => {
    const range = rangeOf([[0, -1, 0.01, 10]], { from: 0, to: 3, isLog: true })!;
    expect(range.low).toBeGreaterThan(0.005);
    expect(range.low).toBeLessThan(0.01);
    expect(rangeOf([[0, null]], { from: 0, to: 1, isLog: true })).toBeUndefined();
  });
});

describe('ticks', () => {
  it.each([
    [{ low: 0.9, high: 1200 }, [1, 3, 10, 30, 100, 300, 1000]],
    [{ low: 0.9, high: 12_000_000 }, [1, 10, 100, 1000, 10_000, 100_000, 1e6, 1e7]],
    [{ low: 0.04, high: 1.1 }, [0.05, 0.1, 0.2, 0.5, 1]],
    [{ low: 2.1, high: 2.9 }, [2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7, 2.8]],
    [{ low: 1e-12, high: 1e3 }, [1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1, 100]],
  ])('are round on a logarithmic axis over %o', (range, ticks) => {
    expect(logTicks(range)).toEqual(ticks);
  });

  it('are short, and all in one unit', () => {
    expect(tickTexts('step', [0, 5000, 10_000])).toEqual(['0', '5k', '10k']);
    expect(tickTexts('step', [0, 2000, 4000])).toEqual(['0', '2000', '4000']);
    expect(tickTexts('tokens', [0, 500_000, 1_000_000])).toEqual(['0', '0.5M', '1M']);
    expect(tickTexts('time', [0, 20, 40])).toEqual(['0 s', '20 s', '40 s']);
    expect(tickTexts('time', [60, 90])).toEqual(['1:00', '1:30']);
    expect(tickTexts('time', [0, 1800, 3600])).toEqual(['0:00 h', '0:30 h', '1:00 h']);
    expect(tickTexts('time', [0, 172_800])).toEqual(['0 d', '2 d']);
  });
});

describe('a mean over steps', () => {
  it('is the exponential one, without the values that are none', () => {
    const values = [4, null, 2, 8];
    const kept = [0.9 ** 3, 0.9, 1]; // what is left of the weights 1 after the steps since
    const sum = kept[0]! * 4 + (kept[1]! * 2 * (1 - 0.9 ** 2)) / 0.1 + 8;
    const weight = kept[0]! + (kept[1]! * (1 - 0.9 ** 2)) / 0.1 + 1;
    const found = smoothed(values, [1, 2, 3, 4], 10);
    expect(found[1]).toBeNull();
    expect(found[3]).toBeCloseTo(sum / weight, 12);
  });

  it('counts a value for the steps since the one before', () => {
    const steps = every(2000, (i) => i + 1);
    const values = steps.map((step) => Math.cos(step / 300));
    const full = smoothed(values, steps, 100);
    const tenth = steps.filter((step) => step % 10 === 0);
    const few = smoothed(
      tenth.map((step) => values[step - 1]!),
      tenth,
      100,
    );
    // Without that it would be a mean over 1000 steps, which is far from it.
    expect(Math.abs(few.at(-1)! - full.at(-1)!)).toBeLessThan(0.05);
  });

  it('is on by itself from 500 steps', () => {
    expect([1, 499, 500, 10_000].map(ownSmoothing)).toEqual([1, 1, 10, 200]);
  });
});

describe('places', () => {
  it('leave out over time the pauses between commands', () => {
    const at = (ms: number) => ({ atMs: ms, stepMs: 1000 });
    const lines = [at(2000), at(4000), at(103_000), at(102_000)];
    expect(workSeconds(lines, [1000, 100_000])).toEqual([1, 3, 6, 6]);
    expect(workSeconds(lines.slice(0, 2), [])).toEqual([1, 3]);
  });

  it('have the line of each run, and nothing where it has none', () => {
    const one = modelOf([beginning, stepOf(1), stepOf(2, { loss: null })], 'one');
    const two = modelOf([beginning, stepOf(2), stepOf(4)], 'two');
    const axis = stepAxis([one, two]);
    expect(axis.xs).toEqual([1, 2, 4]);
    const drawn = drawnOf(loss, [one, two], { axis, isShown: () => true });
    expect(drawn.map(({ name, values }) => [name, values])).toEqual([
      ['one training', [3, null, undefined]],
      ['two training', [undefined, 3, 3]],
    ]);
    expect(csvOf(axis, drawn)).toBe('step,one training,two training\r\n1,3,\r\n2,,3\r\n4,,3\r\n');
  });

  it('leave out over tokens what is known of no tokens', () => {
    const axis = stepAxis([modelOf([stepOf(1), stepOf(2, { tokens: 128 })])], 'tokens');
    expect(axis.xs).toEqual([128]);
    expect(axis.lines[0]!.map((line) => line?.step)).toEqual([2]);
  });
});

describe('layers', () => {
  const records = every(600, (i) => i + 1).map((step) =>
    stepOf(step, {
      loss: step === 300 ? 1000 : 3 + (step % 7) / 10,
      ...(step % 100 === 0 && { validLoss: 3.5 }),
    }),
  );
  const run = modelOf(records);
  const options = {
    isShown: () => true,
    smoothing: 10,
    isStacked: false,
    isLog: false,
    isWhole: false,
  };
  const drawn = drawnOf(loss, [run], { axis: stepAxis([run]), isShown: () => true });

  it('have noise behind its mean, and evaluations above both', () => {
    const layers = layersOf(drawn, options);
    expect(layers.map(({ kind, drawn: { name } }) => `${kind} ${name}`)).toEqual([
      'faint training',
      'line training',
      'sparse validation',
    ]);
    expect(layersOf(drawn, { ...options, smoothing: 1 }).map(({ kind }) => kind)).toEqual([
      'line',
      'sparse',
    ]);
    const hidden = { ...options, isShown: ({ name }: { name: string }) => name !== 'training' };
    expect(layersOf(drawn, hidden).map(({ kind }) => kind)).toEqual(['sparse']);
  });

  it('have a mean in which a spike counts as the edge of the range, unless all values are asked for', () => {
    const meanAfter = (isWhole: boolean) =>
      layersOf(drawn, { ...options, isWhole })[1]!.values[305]!;
    expect(meanAfter(false)).toBeLessThan(4);
    expect(meanAfter(true)).toBeGreaterThan(50);
  });

  it('lie on top of each other where they are stacked', () => {
    const chart = CHARTS.find(({ id }) => id === 'communication')!;
    const busy = modelOf([stepOf(1, { collectiveMs: 30, exposedMs: 10 })]);
    const both = drawnOf(chart, [busy], { axis: stepAxis([busy]), isShown: () => true });
    const stacked = layersOf(both, { ...options, smoothing: 1, isStacked: true });
    expect(stacked.map(({ values }) => values[0])).toEqual([30, 10]);
    expect(stacked.map(({ own }) => own[0])).toEqual([20, 10]);
  });

  it('know the last evaluation at a place', () => {
    expect([3, 1, 0].map((at) => valueAt([null, 5, null, undefined], at))).toEqual([
      5,
      5,
      undefined,
    ]);
  });
});

it('small lines lose no spike', () => {
  const values = every(10_000, (i) => (i === 4321 ? -7 : i === 8765 ? 9 : 1 / (i + 1)));
  const few = thinned(values, 60);
  expect(few).toHaveLength(120);
  expect(few).toEqual(expect.arrayContaining([-7, 9]));
  expect(thinned([1, null, 2], 60)).toEqual([1, 2]);
});

it('names of files have nothing that a system refuses', () => {
  expect(fileName(['../a b/"c"', 'loss'], 'csv')).toBe('a-b-c-loss.csv');
  const column = { run: 0, series: loss.series, name: 'a "b", c', values: [1], steps: [1] };
  expect(csvOf({ kind: 'time', xs: [0.5] }, [column as never])).toBe(
    'seconds,"a ""b"", c"\r\n0.5,1\r\n',
  );
});

describe('looks of runs', () => {
  const css = readFileSync(new URL('../src/page/page.css', import.meta.url), 'utf8');
  const [light, dark] = css.split('prefers-color-scheme: dark');
  const themes = [light, dark].map((theme) => {
    const colors = [...theme!.matchAll(/--(run-\d+|card): (#[0-9a-f]{6});/g)];
    return new Map(colors.map(([, name, color]) => [name!, color!]));
  });
  const luminance = (color: string) =>
    [1, 3, 5]
      .map((at) => Number.parseInt(color.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
      .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i]!, 0);
  const contrast = (one: string, other: string) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high! + 0.05) / (low! + 0.05);
  };

  it.each([0, 1])('are twelve of their own, each seen on a card, in theme %d', (theme) => {
    const colors = every(NUM_RUN_COLORS, (i) => i).map((i) => themes[theme]!.get(`run-${i}`)!);
    expect(new Set(colors).size).toBe(12);
    const card = themes[theme]!.get('card')!;
    expect(colors.filter((color) => contrast(color, card) < 3)).toEqual([]);
  });

  it('have dashes of their own, which a run alone has not', () => {
    expect(new Set(RUN_DASHES.map((dash) => dash.join())).size).toBe(12);
    const palette = { color: (name: string) => name, run: String, depth: String };
    const [drawn] = drawnOf(loss, [modelOf([stepOf(1)])], {
      axis: stepAxis([modelOf([stepOf(1)])]),
      isShown: () => true,
    });
    expect(lookOf({ ...drawn!, run: 3 }, palette, 4)).toEqual({ color: '3', dash: RUN_DASHES[3] });
    expect(lookOf(drawn!, palette, 1)).toEqual({ color: '0', dash: [] });
    expect(mixed('#000000', '#ff8000', 0.5)).toBe('#804000');
  });
});

describe('a run', () => {
  it('was killed where it has no end and is not live', () => {
    const records = [beginning, stepOf(1)];
    expect(modelOf(records, 'run', false).state).toBe('killed');
    expect(modelOf(records).state).toBe('training');
    const end: RunRecord = { type: 'runEnd', end: 'done', atMs: 5000 };
    expect(modelOf([...records, end], 'run', false).state).toBe('done');
    expect(modelOf([...records, end]).lastMs).toBe(5000);
  });

  it('says at which step it diverged, and that no target counted is no divergence', () => {
    expect(modelOf([stepOf(1), stepOf(2, { loss: null })]).divergedAt).toBe(2);
    expect(modelOf([stepOf(1, { loss: null, targets: 0 })]).divergedAt).toBeUndefined();
    expect(modelOf([stepOf(1, { loss: null, skipped: true })]).divergedAt).toBeUndefined();
  });

  it('has the saves that are there', () => {
    const save = (step: number): RunRecord => ({
      ...{ type: 'save', step, directory: `s${step}`, bytes: 1, ms: 1, waitMs: 1, atMs: 1 },
    });
    const gone: RunRecord = { type: 'saveGone', step: 1, directory: 's1', atMs: 0 };
    expect(modelOf([save(1), save(2), gone]).saves.map(({ step }) => step)).toEqual([2]);
    expect(modelOf([save(2), gone]).saves.map(({ step }) => step)).toEqual([2]);
  });

  it('differs from others in settings that not all have alike', () => {
    const of = (lr: string) =>
      modelOf(
        [
          {
            type: 'header',
            rows: [
              ['model', 'nano'],
              ['optim', lr],
            ],
          },
        ],
        lr,
      );
    const columns = differing([of('1e-3'), of('2e-3')]);
    expect(columns.map(({ name }) => name)).toEqual(['optim']);
  });
});
