import { describe, expect, it } from 'vitest';
import { TrainerError } from '../src/errors.js';
import type { StepMetrics } from '../src/rank/events.js';
import { type StepOutcome, trainLoop } from '../src/rank/train-loop.js';
import { learningRate } from '../src/schedule.js';

const CONFIG = {
  evalEvery: 100,
  steps: 6,
  batch: 4,
  seq: 8,
  lr: 1,
  schedule: 'cosine',
  warmup: 2,
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
  });

  it('ends with a loss that is not a number, unless its step was skipped', async () => {
    const nan = { ...FINE, loss: Number.NaN };
    const ended = await run((step) => (step === 2 ? nan : FINE));
    expect(ended.error).toBeInstanceOf(TrainerError);
    expect(ended.error).toHaveProperty('message', expect.stringContaining('at step 3'));
    expect(ended.log).toHaveLength(3); // the step that diverged is told of
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
});
