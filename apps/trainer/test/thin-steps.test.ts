// A run of very many steps is drawn of few lines: what a plot shows of all of them stays.

import { describe, expect, it } from 'vitest';
import { RunHistory } from '../src/output/run-history.js';
import type { StepLine } from '../src/output/run-records.js';
import { runOf } from '../src/page/run/run-model.js';
import { ThinnedSteps, thinSteps } from '../src/page/run/thin-steps.js';
import { splitMix32 } from '../src/seeded-random.js';
import { madeLine } from './support/made-runs.js';

const MOST = 2000;
const RANDOM = splitMix32(5, 0);
const NOISE = () => RANDOM() / 2 ** 32;
const LINES = Array.from({ length: 16_000 }, (_, i) =>
  madeLine(i + 1, { loss: 2 + NOISE(), gradNorm: NOISE(), tokensPerSecond: 900 + NOISE() }),
);
const spiked = (step: number, over: Partial<StepLine>) =>
  LINES.map((line) => (line.step === step ? { ...line, ...over } : line));

/** The least and the most of a series in each bucket of so many steps. */
function envelope(lines: readonly StepLine[], name: 'loss' | 'gradNorm', size: number) {
  const buckets = new Map<number, [least: number, most: number]>();
  for (const line of lines) {
    const at = Math.floor(line.step / size);
    const [least, most] = buckets.get(at) ?? [Infinity, -Infinity];
    buckets.set(at, [Math.min(least, line[name]!), Math.max(most, line[name]!)]);
  }
  return [...buckets];
}

describe('thinned steps', () => {
  it('are as they were where there are not too many', () => {
    expect(thinSteps(LINES.slice(0, MOST), MOST)).toEqual(LINES.slice(0, MOST));
  });

  it('have the ends, each evaluation and the extremes of each series', () => {
    const lines = spiked(7777, { exposedMs: 400 }).map((line) =>
      line.step % 100 === 0 ? { ...line, validLoss: 3 } : line,
    );
    const thin = thinSteps(lines, MOST);
    expect(thin.length).toBeLessThanOrEqual(0.7 * MOST + 2);
    expect(thin.length).toBeGreaterThan(0.3 * MOST);
    expect([thin[0], thin.at(-1)]).toEqual([lines[0], lines.at(-1)]);
    expect(thin.filter(({ validLoss }) => validLoss === 3)).toHaveLength(160);
    expect(thin).toContainEqual(lines[7776]);
    // 16,001 steps in at most 150 buckets by loss, and in at most 33 by the others.
    expect(envelope(thin, 'loss', 128)).toEqual(envelope(lines, 'loss', 128));
    expect(envelope(thin, 'gradNorm', 512)).toEqual(envelope(lines, 'gradNorm', 512));
  });

  it('are the same lines whether they are thinned as they come or at once, at the extremes', () => {
    const steps = new ThinnedSteps(MOST);
    let most = 0;
    for (const line of LINES) {
      steps.add(line);
      most = Math.max(most, steps.lines.length);
    }
    expect(most).toBe(MOST);
    expect(steps.numSteps).toBe(LINES.length);
    expect(envelope(steps.lines, 'loss', 128)).toEqual(envelope(LINES, 'loss', 128));
    expect(envelope(steps.lines, 'gradNorm', 512)).toEqual(envelope(LINES, 'gradNorm', 512));
  });

  it('say of how many they are, to whoever comes late and on the page', () => {
    const history = new RunHistory(MOST);
    for (const line of LINES) {
      history.add({ type: 'step', ...line });
    }
    const records = history.records();
    expect(records[0]).toMatchObject({ type: 'steps', of: 16_000 });
    expect(runOf({ name: 'a', records }).thinnedFrom).toBe(16_000);
  });
});

describe('what a history keeps', () => {
  it('has of saves those that are there, and of very many samples every other one', () => {
    const history = new RunHistory();
    const save = (step: number) => ({ step, directory: `/run/saves/${step}`, atMs: 1 });
    for (const step of [1, 2, 3]) {
      history.add({ type: 'save', ...save(step), bytes: 1, ms: 1, waitMs: 1 });
    }
    history.add({ type: 'saveGone', ...save(2) });
    for (let step = 1; step <= 5000; step++) {
      history.add({ type: 'sample', step, prompt: '', text: 'x' });
    }
    const of = (type: string) =>
      history
        .records()
        .flatMap((record) => (record.type === type && 'step' in record ? record.step : []));
    expect([of('save'), of('saveGone')]).toEqual([[1, 3], []]);
    const samples = of('sample');
    expect(samples.length).toBeLessThanOrEqual(500);
    expect(samples.length).toBeGreaterThan(200);
    expect(samples.at(-1)).toBe(5000);
    expect(samples[0]).toBeLessThan(100);
  });
});
