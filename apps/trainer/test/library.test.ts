// The trainer as a library: what the command does, by calls in place of lines.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  type RunRecord,
  type TrainConfig,
  type TrainedStep,
  type TrainOptions,
  train,
  UsageError,
} from '../src/index.js';
import { parseFlags } from './support/parse-flags.js';
import { tinyFlags } from './support/tiny-run.js';

/** The configuration of a tiny run in a new folder. */
function tinyConfig(): TrainConfig & { readonly out: string } {
  const folder = newFolder();
  const { device, threads, model, tokenizer, data, seq, batch, warmup } = parseFlags(
    tinyFlags(folder).split(' '),
    () => {},
  );
  const out = join(folder, 'out');
  const own = { device, threads, model, tokenizer, data, seq, batch, warmup };
  return { ...own, steps: 8, out, saveEvery: 2, keep: 9 };
}

const linesOf = (out: string): TrainedStep[] =>
  readFileSync(join(out, 'metrics.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
const lossesOf = (steps: readonly TrainedStep[]) => steps.map(({ loss }) => loss);

afterEach(() => vi.restoreAllMocks());

describe('train', () => {
  it('tells each step, evaluation, text and save, and prints nothing', async () => {
    const printed = [process.stdout, process.stderr].map((stream) =>
      vi.spyOn(stream, 'write').mockReturnValue(true),
    );
    const config = { ...tinyConfig(), steps: 4, validFraction: 0.2, evalEvery: 2, sampleEvery: 2 };
    const signals = process.eventNames();
    const told: string[] = [];
    const steps: TrainedStep[] = [];
    const texts: string[] = [];
    let during: unknown;
    const result = await train(
      { ...config, samplePrompt: 'Call me' },
      {
        onStep: (step) => {
          steps.push(step);
          told.push(`step ${step.step}`);
          during = process.eventNames();
        },
        onEval: ({ step, validLoss }) => told.push(`eval ${step} ${validLoss > 0}`),
        onSample: ({ step, prompt, text }) => {
          told.push(`sample ${step} ${prompt}`);
          texts.push(text);
        },
        onSave: ({ step }) => told.push(`save ${step}`),
        onWarning: expect.unreachable,
      },
    );
    for (const write of printed) {
      expect(write).not.toHaveBeenCalled();
    }
    expect(during).toEqual(signals);
    expect(told.filter((line) => !line.startsWith('save'))).toEqual([
      ...['step 1', 'step 2', 'eval 2 true', 'sample 2 Call me'],
      ...['step 3', 'step 4', 'eval 4 true', 'sample 4 Call me'],
    ]);
    expect(told.filter((line) => line.startsWith('save'))).toEqual(['save 2', 'save 4']);
    expect(new Set(texts).size).toBe(2); // the model changes between them
    expect(linesOf(config.out)).toEqual(JSON.parse(JSON.stringify(steps)));
    expect(steps.map(({ tokens }) => tokens)).toEqual([96, 192, 288, 384]);
    expect(result).toMatchObject({ why: 'done', step: 4, directory: join(config.out, 'model') });
    expect(result.loss).toBe(steps[3]!.validLoss);
    // Texts in between change no step, and one rank has the same norms of layers as two.
    const plain = { ...tinyConfig(), ranks: 1, steps: 4, validFraction: 0.2, evalEvery: 2 };
    await train(plain);
    const alone = linesOf(plain.out);
    expect(lossesOf(alone)).toEqual(lossesOf(steps).map((loss) => expect.closeTo(loss!, 5)));
    for (const [i, { gradNorm, groups }] of alone.entries()) {
      expect(Object.keys(groups!)).toEqual(['wte', 'wpe', 'h.0', 'h.1', 'ln_f']);
      const norms = Object.values(groups!).map((group) => group.gradNorm);
      expect(Math.hypot(...norms)).toBeCloseTo(gradNorm!, 5);
      const others = Object.values(steps[i]!.groups!).map((group) => group.gradNorm);
      expect(others).toEqual(norms.map((norm) => expect.closeTo(norm, 4)));
    }
  });

  it('ends by its signal with a save, and goes on from there', async () => {
    const whole = tinyConfig();
    await train({ ...whole, ranks: 1 });
    const config = { ...tinyConfig(), model: whole.model, ranks: 1, out: tinyConfig().out };
    const stop = new AbortController();
    const reason = new Error('enough');
    const onStep = ({ step }: TrainedStep) => step === 3 && stop.abort(reason);
    await expect(train(config, { onStep, signal: stop.signal })).rejects.toBe(reason);
    expect(linesOf(config.out)).toHaveLength(3);
    const earlier = train(config);
    await expect(earlier).rejects.toThrow(UsageError);
    await expect(earlier).rejects.toThrow('a run with saves. Go on from the newest');
    const went: TrainedStep[] = [];
    const result = await train(
      { ...config, resume: 'auto' },
      { onStep: (step) => went.push(step) },
    );
    expect(went.map(({ step }) => step)).toEqual([4, 5, 6, 7, 8]);
    expect(went[0]!.tokens).toBe(4 * 96);
    expect(lossesOf(linesOf(config.out))).toEqual(lossesOf(linesOf(whole.out)));
    expect(result.step).toBe(8);
    await expect(train(config, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  it.each(['last', 'best'] as const)(
    'saves at the signal with out alone, and no longer once the model is there: final %s',
    async (final) => {
      const own = { ...tinyConfig(), saveEvery: undefined, keep: undefined, ranks: 1, final };
      const config = { ...own, validFraction: 0.2, evalEvery: 2 };
      const stop = new AbortController();
      const onStep = ({ step }: { readonly step: number }) =>
        step === 5 && stop.abort(new Error('x'));
      await expect(train(config, { onStep, signal: stop.signal })).rejects.toThrow('x');
      expect(readdirSync(join(config.out, 'saves')).at(-1)).toMatch(/^step-00000[567]$/);
      const seen: number[] = [];
      await train({ ...config, resume: 'auto' }, { onStep: ({ step }) => seen.push(step) });
      expect(seen[0]).toBeGreaterThan(5);
      expect(existsSync(join(config.out, 'model'))).toBe(true);
      expect(existsSync(join(config.out, 'saves'))).toBe(false);
    },
  );

  it('keeps the steps that logEvery asks for, and those that people look for', async () => {
    const config = { ...tinyConfig(), ranks: 1, steps: 5, logEvery: 2 };
    const { loss, best } = await train(config);
    expect(linesOf(config.out).map(({ step }) => step)).toEqual([1, 2, 4, 5]);
    expect(loss).toBeGreaterThan(0); // of the rows that would follow
    expect(best).toBeUndefined();
  });

  it('ends with what a call throws, and calls no more', async () => {
    const mistake = new TypeError('a mistake in the caller');
    const seen: string[] = [];
    const onRecord = ({ type }: RunRecord) => {
      seen.push(type);
      if (type === 'step') {
        throw mistake;
      }
    };
    await expect(train(tinyConfig(), { onRecord })).rejects.toBe(mistake);
    expect(seen.filter((type) => type === 'step')).toHaveLength(1);
    expect(seen.at(-1)).toBe('step'); // the save and the end are not told
  });

  it.each([
    [{ batchsize: 5 }, 'train: there is no field batchsize. Fields are flags in camelCase.'],
    [{ saveEvry: 5 }, 'train: there is no field saveEvry. Did you mean saveEvery? Fields'],
    [{ learningRate: 5 }, 'train: there is no field learningRate. Did you mean lr? Fields'],
    [{ steps: '5' }, 'train: steps: expected a whole number of at least 1, got "5".'],
    [{ timeLimit: 90 }, 'train: timeLimit: expected a time such as 90s, 30m or 2h, got 90.'],
    [{ dashboard: true }, 'train: there is no field dashboard.'],
    [{ transport: 'mpi' }, 'train: transport mpi starts with the command.'],
    [{ saveEvery: 5 }, '--save-every is for --out, which is not given.'],
  ])('refuses %j', async (config, says) => {
    const refused = train(config as unknown as TrainConfig);
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(says);
  });

  it.each([
    [{ onstep: () => {} }, 'train: there is no option onstep. Did you mean onStep? Options are'],
    [{ onStep: 5 }, 'train: onStep: expected a function, got 5.'],
  ])('refuses the options %j', async (options, says) => {
    const refused = train(tinyConfig(), options as unknown as TrainOptions);
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(says);
  });
});
