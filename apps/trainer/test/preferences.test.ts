// Runs that learn from pairs of answers. Twenty steps are compared with PyTorch's
// (tooling/reference/preference.py), which computes each answer alone. A small model learns which
// answers are preferred, and tells it of pairs that it has not seen.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeModel, parseModelConfig, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { Replayed } from '../src/again/replay-step.js';
import { modelFolder } from './support/example-files.js';
import { expectReference, losses } from './support/expect-reference.js';
import { jsonlFile } from './support/jsonl-data.js';
import { runCli } from './support/run-cli.js';
import { type RunRecord, referenceCase, runFlags, worstRatio } from './support/run-flags.js';
import { runLine } from './support/tiny-run.js';
import { writeModel } from './support/write-model.js';

/** Sharded and single runs differ only by the order of sums. */
const SHARDED_TOLERANCE = 2e-6;

const run = (name: string, flags: string, numSteps?: number) =>
  runFlags(
    [...referenceCase(name).flags, '--device', 'cpu', '--threads', '1', ...flags.split(' ')],
    {
      numSteps,
    },
  );

afterEach(() => {
  vi.unstubAllEnvs();
});

/** Makes the runs that follow find references for themselves. */
function forgetReferences(): void {
  vi.stubEnv('SHARDWEAVE_CACHE', newFolder());
}

it.each([
  // Two of four ranks have no pair in their second micro-step.
  ['preference.orpo-fp32', '--strategy ddp --ranks 4 --grad-accum 2'],
  ['preference.dpo-fp32', '--ranks 3'],
])('%s has the losses of PyTorch, alone and by %s', async (name, way) => {
  const single = await run(name, '--strategy single');
  expectReference(single, name);
  forgetReferences();
  const sharded = await run(name, way, 2);
  expect(worstRatio(losses(sharded), losses(single).slice(0, 2))).toBeLessThan(SHARDED_TOLERANCE);
  for (const [i, { batchFigures }] of sharded.steps.entries()) {
    const { accuracy, margin } = single.steps[i]!.batchFigures!;
    expect(batchFigures!.accuracy).toBeCloseTo(accuracy!, 6);
    expect(batchFigures!.margin).toBeCloseTo(margin!, 5);
  }
});

const SYLLABLES = ['ka', 'lo', 'mi', 'ru', 'te', 'so', 'na', 'vi'];
const WORDS = SYLLABLES.flatMap((first) => SYLLABLES.map((second) => first + second));
/** Answers in small letters are preferred, whatever the word is. */
const PAIRS = WORDS.map((word) => ({
  prompt: `say ${word}: `,
  chosen: word,
  rejected: word.toUpperCase(),
}));
const isHeldOut = (_: unknown, i: number) => i % 4 === 3;
/** Weights so large that adapters have something to hold on to. */
const config = { initializer_range: 0.3 };
const learnt = PAIRS.filter((pair, i) => !isHeldOut(pair, i));
const { file: data, model } = jsonlFile(learnt, { config });
const { file: valid } = jsonlFile(PAIRS.filter(isHeldOut), { model, name: 'valid.jsonl' });

beforeAll(async () => {
  const device = new Device(createReferenceBackend());
  const config = parseModelConfig(readFileSync(join(model, 'config.json'), 'utf8'));
  await writeModel(model, {
    config,
    state: await stateDict(makeModel(device, config, { seed: 1 })),
  });
  device.dispose();
});

const FLAGS = `--model ${model} --data ${data} --valid ${valid} --device cpu --threads 1 --seq 24 --batch 16 --products wasm --hash-every 4 --schedule constant`;
const TASKS = {
  orpo: '--task orpo --lr 0.01 --steps 8',
  dpo: '--task dpo --lora-rank 4 --lora-dropout 0.1 --dpo-beta 0.5 --lr 0.01 --steps 8',
} as const;

const told = ({ steps }: RunRecord) =>
  steps.map(({ step, loss, validLoss, figures, batchFigures, hash }) => {
    return { step, loss, validLoss, figures, batchFigures, hash };
  });

/** With SHARDWEAVE_LONG=1 both tasks learn it, of which dpo has more to go wrong. */
const LEARNT = (process.env.SHARDWEAVE_LONG === '1' ? ['orpo', 'dpo'] : ['dpo']) as (
  | 'orpo'
  | 'dpo'
)[];

describe.each(LEARNT)('a preference that is learnt by %s', (task) => {
  it('holds for other pairs, with one hash on any number of ranks and across a resume', async () => {
    const out = join(newFolder(), 'run');
    const flags = `${FLAGS} ${TASKS[task]} --gradient-groups 4`;
    const whole = await runLine(`${flags} --strategy single`);
    const last = whole.steps.at(-1)!;
    expect(last.figures!.accuracy).toBeGreaterThan(0.95);
    expect(last.batchFigures!.accuracy).toBeGreaterThan(0.9);
    expect(last.figures!.margin).toBeGreaterThan(whole.steps[0]!.batchFigures!.margin!);
    const line = `${flags} --out ${out} --save-every 4`;
    const first = await runLine(`${line.replace('steps 8', 'steps 4')} --ranks 2`);
    const again = await runLine(`${line} --strategy ddp --ranks 3 --resume auto`);
    expect(again.resumed?.step).toBe(4);
    expect(told(again)).toEqual(told(whole).slice(4));
    const { hash } = whole.steps[3]!;
    expect(hash).toHaveLength(64);
    expect(first.steps.at(-1)!.hash).toBe(hash);
    // Whoever judges it finds what the run has found; beta and lambda are those of the default.
    const adapter = task === 'dpo' ? ` --adapter ${out}` : '';
    const from = task === 'dpo' ? model : out;
    const judge = `eval --model ${from}${adapter} --task ${task} --data ${valid} --seq 24 --device cpu --threads 1 --json`;
    const { out: text, err } = await runCli(judge.split(' '));
    expect(err).toBe('');
    const found = JSON.parse(text) as { task: string; values: Record<string, number> };
    expect(found).toMatchObject({ task, examples: 16 });
    expect(found.values.accuracy).toBeCloseTo(last.figures!.accuracy!, 6);
    const factor = task === 'dpo' ? 0.1 / 0.5 : 1;
    expect(found.values.margin! / factor).toBeCloseTo(last.figures!.margin!, 4);
  });
});

it('adapters that training begins with are no part of the reference, nor of one found again', async () => {
  const out = join(newFolder(), 'run');
  const flags = `${FLAGS.replace(valid, data)} ${TASKS.dpo.replace('--lora-dropout 0.1 ', '')}`;
  const line = `train ${flags.replace('steps 8', 'steps 4')} --ranks 1 --quiet --out ${out}`;
  expect(await runCli(line.split(' '))).toMatchObject({ code: 0, err: '' });
  const { figures } = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8')) as {
    readonly figures: { readonly margin: number };
  };
  expect(figures.margin).toBeGreaterThan(0.01);
  forgetReferences();
  const second = await runLine(
    `${flags.replace('--lora-rank 4', `--adapter ${out}`).replace('--batch 16', '--batch 48')} --ranks 1 --steps 1`,
  );
  expect(second.steps[0]!.batchFigures!.margin).toBeCloseTo(figures.margin, 4);
  const again = await runCli(['verify', out]);
  expect(again.out).toContain('4 of 4 steps equal, in losses and gradient norms, to the bit.');
  const replay = await runCli(['replay', out, '--step', '2', '--rows', '--json']);
  const { metrics, difference, rows } = JSON.parse(replay.out) as Replayed;
  expect(difference).toBeUndefined();
  expect(rows).toHaveLength(16);
  const sum = rows.reduce((all, row) => all + row.loss, 0);
  expect(sum / 16).toBeCloseTo(metrics.loss, 4);
});

it('refuses dpo without adapters, in a run and an evaluation, and encoders', async () => {
  const refusal = async (line: string) => (await runCli(line.split(' '))).err;
  const files = `--model ${model} --data ${data}`;
  expect(await refusal(`train ${files} --task dpo`)).toContain(
    '--task dpo compares the model with what it is without its adapters, and there are none. Give --lora-rank 16, or use --task orpo, which needs no reference.',
  );
  expect(await refusal(`train --model ${model} --task orpo`)).toContain(
    '--task orpo learns from examples, and --data is not given.',
  );
  expect(await refusal(`eval ${files} --task dpo`)).toContain(
    'Give --adapter with those that were trained, or --task orpo, which needs no reference.',
  );
  expect(await refusal(`train --model ${modelFolder()} --data ${data} --task orpo`)).toContain(
    '--task orpo: a bert reads text and writes none.',
  );
});
