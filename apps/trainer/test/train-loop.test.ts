import { describe, expect, it, vi } from 'vitest';
import { DivergedError } from '../src/errors.js';
import type { StepMetrics } from '../src/rank/events.js';
import { type StepOutcome, trainLoop } from '../src/rank/train-loop.js';
import { learningRate } from '../src/schedule.js';

const CONFIG = {
  evalEvery: 100,
  steps: 6,
  batch: 4,
  seq: 8,
  lr: 1,
  minLr: 0,
  schedule: 'cosine',
  warmup: 2,
  decaySteps: undefined,
  patience: undefined,
} as const;
const FINE: StepOutcome = { loss: 2, numTargets: 32, gradNorm: 1, lossScale: 1, isSkipped: false };

async function run(
  outcomeOf: (step: number) => StepOutcome,
  signal = new AbortController().signal,
) {
  const calls: [number, number][] = [];
  const log: StepMetrics[] = [];
  const runner = {
    runStep: async (step: number, lr: number) => {
      calls.push([step, lr]);
      return outcomeOf(step);
    },
    resources: () => ({ peakBytes: 0, wireBytes: 0 }),
  };
  const error: unknown = await trainLoop({
    config: CONFIG,
    runner,
    signal,
    rows: 8,
    tokensBefore: 0,
    onStep: (metrics) => log.push(metrics),
  }).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  return { calls, log, error };
}

describe('trainLoop', () => {
  it('an overflow takes rows and a line of the log, not a place in the schedule', async () => {
    const { calls, log } = await run((step) =>
      step === 1 || step === 3
        ? { ...FINE, gradNorm: Number.POSITIVE_INFINITY, lossScale: 8, isSkipped: true }
        : FINE,
    );
    const rates = [0, 1, 1, 2, 2, 3].map((s) => learningRate(CONFIG, s));
    expect(calls).toEqual(rates.map((lr, step) => [step, lr]));
    expect(log.map((line) => line.step)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(log.map((line) => line.skipped)).toEqual([false, true, false, true, false, false]);
    expect(log.map((line) => line.gradNorm)).toEqual([1, null, 1, null, 1, 1]);
    expect(log.map((line) => line.lossScale)).toEqual([1, 8, 1, 8, 1, 1]);
    expect(log.map((line) => line.lr)).toEqual(rates);
    expect(log.map((line) => line.epoch)).toEqual([0.5, 1, 1.5, 2, 2.5, 3]); // 4 of 8 rows a step
  });

  it.each([
    [Number.NaN, 'not a number'],
    [Number.POSITIVE_INFINITY, 'infinite'],
  ])('ends with a loss of %s, unless its step was skipped', async (loss, what) => {
    const nan = { ...FINE, loss };
    const ended = await run((step) => (step === 2 ? nan : FINE));
    expect(ended.error).toBeInstanceOf(DivergedError);
    expect(ended.error).toHaveProperty('message', expect.stringContaining(`${what} at step 3`));
    expect(ended.log).toHaveLength(3); // The step that diverged is reported.
    const skipped = await run((step) => (step === 2 ? { ...nan, isSkipped: true } : FINE));
    expect(skipped.error).toBeUndefined();
    expect(skipped.log).toHaveLength(CONFIG.steps);
  });

  it('stops between steps when aborted', async () => {
    const stop = new AbortController();
    const { log, error } = await run((step) => {
      if (step === 2) {
        stop.abort(new Error('enough'));
      }
      return FINE;
    }, stop.signal);
    expect(log).toHaveLength(3);
    expect(error).toHaveProperty('message', 'enough');
  });

  /** Evaluates after every two of forty steps, with these losses. */
  async function evaluated(
    losses: readonly number[],
    options: Partial<Parameters<typeof trainLoop>[0]> & {
      readonly isTimeOver?: () => Promise<boolean>;
    },
  ) {
    const left = [...losses];
    const ends: boolean[] = [];
    const reached = await trainLoop({
      config: { ...CONFIG, steps: 40, evalEvery: 2, patience: 2 },
      runner: {
        runStep: async () => FINE,
        evaluate: async () => ({ loss: left.shift()! }),
        isTimeOver: options.isTimeOver,
        resources: () => ({ peakBytes: 0, wireBytes: 0 }),
      },
      signal: new AbortController().signal,
      rows: 8,
      tokensBefore: 0,
      onStep: () => {},
      afterStep: async ({ isLast }) => {
        ends.push(isLast);
        return false;
      },
      ...options,
    });
    return { reached, ends, numEvaluations: losses.length - left.length };
  }

  it('ends when so many evaluations in a row had no lower loss, and tells its last step so', async () => {
    const { reached, ends } = await evaluated([3, 2, 2, 1, 1.5, 1, 0], {});
    const best = { step: 8, validLoss: 1 };
    expect(reached).toEqual({ step: 12, updates: 12, early: 'patience', best, validLoss: 1 });
    expect(ends).toEqual([...Array(11).fill(false), true]);
    const falling = await evaluated([...Array(20).keys()].reverse(), {});
    expect(falling.reached).toEqual({
      step: 40,
      updates: 40,
      best: { step: 40, validLoss: 0 },
      validLoss: 0,
    });
    const nothing = await evaluated([Number.NaN, Number.NaN, 1], {});
    expect(nothing.reached).toMatchObject({ step: 4, early: 'patience' });
  });

  it('counts evaluations from the best one, of a run that goes on too', async () => {
    const from = { step: 6, updates: 6, best: { step: 4, validLoss: 1 } };
    expect((await evaluated([2, 0.5, 0], { from })).reached).toMatchObject({ step: 8 });
    expect((await evaluated([0.5, 2, 2], { from })).reached).toMatchObject({ step: 12 });
    // One that has no best yet is not charged with the steps before it was evaluated.
    const anew = { step: 6, updates: 6 };
    expect((await evaluated([3, 4, 4, 0], { from: anew })).reached).toMatchObject({ step: 12 });
    const nan = [Number.NaN, Number.NaN, Number.NaN];
    expect((await evaluated(nan, { from: anew })).reached).toMatchObject({ step: 10 });
    const between = { step: 5, updates: 5 };
    expect((await evaluated(nan, { from: between })).reached).toMatchObject({ step: 8 });
  });

  it.each<[string, object, object, object]>([
    ['is over already', { step: 41, updates: 30 }, {}, { step: 41, updates: 30 }],
    ['is at its end', { step: 40, updates: 30, validLoss: 2 }, {}, { step: 40, validLoss: 2 }],
    ['begins', {}, {}, { step: 2, early: 'asked', best: { step: 2, validLoss: 9 } }],
    ['goes on', { best: { step: 2, validLoss: 1 } }, { step: 6 }, { best: { step: 2 } }],
  ])('a run that %s', async (_, from, more, expected) => {
    const isLong = 'step' in from;
    const start = { step: 0, updates: 0, ...more, ...from };
    const afterStep = async ({ step }: { step: number }) => step === start.step + 2;
    const { reached, numEvaluations } = await evaluated([9, 9, 9], { from: start, afterStep });
    expect(reached).toMatchObject(expected);
    expect(numEvaluations).toBe(isLong ? 0 : 1);
  });

  it.each([
    [{ step: 8, updates: 8, best: { step: 4, validLoss: 1 }, validLoss: 3 }, 'patience'],
    [{ step: 8, updates: 8, best: { step: 6, validLoss: 1 }, validLoss: 3 }, undefined],
    [{ step: 8, updates: 8, best: { step: 4, validLoss: 1 } }, undefined],
  ])('killed between its last save and its results, from %j, ends as %s', async (from, early) => {
    const config = { ...CONFIG, steps: 9, evalEvery: 2, patience: 2 };
    const { reached, ends } = await evaluated([3], { from, config });
    expect([reached.early, reached.step, ends]).toEqual(
      early ? ['patience', 8, []] : [undefined, 9, [true]],
    );
  });

  it.each([
    [{}, [1, 2, 3, 4, 5, 6]],
    [{ hashEvery: 4 }, [4, 6]],
    [{ hashEvery: 3 }, [3, 6]],
    [{ again: { hashAt: [2], until: 5 } }, [2]],
  ])('a run with %j hashes at %j, once', async (more, at) => {
    const hash = vi.fn(async () => ({ hash: 'h', numericClass: 'c' }));
    const lines: StepMetrics[] = [];
    const reached = await trainLoop({
      config: { ...CONFIG, ...more } as Parameters<typeof trainLoop>[0]['config'],
      runner: {
        runStep: async () => ({ ...FINE, numTokens: 3, groups: {} }),
        hash,
        resources: () => ({ peakBytes: 0, wireBytes: 0 }),
      },
      signal: new AbortController().signal,
      rows: 8,
      tokensBefore: 100,
      onStep: (metrics) => lines.push(metrics),
      afterStep: async ({ hash: ask, step }) => {
        if (at.includes(step)) {
          await ask!();
        }
        return false;
      },
    });
    const told = lines.filter((line) => 'hash' in line);
    expect(told.map(({ step }) => step)).toEqual(at);
    expect(hash).toHaveBeenCalledTimes(at.length);
    expect(lines.map(({ tokens }) => tokens)).toEqual(lines.map(({ step }) => 100 + 3 * step));
    expect(lines.every(({ groups }) => groups !== undefined)).toBe(true);
    expect([reached.step, reached.early]).toEqual('again' in more ? [5, 'asked'] : [6, undefined]);
  });

  it('tells no groups of a norm that is not finite', async () => {
    const { log } = await run(() => ({ ...FINE, gradNorm: Number.NaN, groups: {} }));
    expect(log.every(({ gradNorm, groups }) => gradNorm === null && groups === undefined)).toBe(
      true,
    );
  });

  it('ends with the step at which its time is over, behind an evaluation', async () => {
    let numAsked = 0;
    const isTimeOver = async () => ++numAsked === 3;
    const { reached, ends, numEvaluations } = await evaluated([3, 2, 1], { isTimeOver });
    expect(reached).toMatchObject({ step: 3, updates: 3, early: 'time' });
    expect(ends).toEqual([false, false, true]);
    expect(numEvaluations).toBe(2);
  });
});
