// The families of decoders run in the trainer, on the cpu device over memory. Their first 20 losses
// are compared with PyTorch's (tooling/reference), for one process and in every strategy.

import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseModelConfig, readSafetensors } from '@shardweave/nn';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { expectReference, losses } from './support/expect-reference.js';
import { jsonlFile } from './support/jsonl-data.js';
import { LETTERS } from './support/letters-tokenizer.js';
import { ROOT, type RunRecord, referenceCase, runFlags, worstRatio } from './support/run-flags.js';

/** Sharded and single runs differ only by the order of sums. */
const SHARDED_TOLERANCE = 2e-6;
const FAMILIES = ['llama', 'biased', 'qwen2', 'qwen3', 'smollm3', 'gemma3'] as const;

const isLong = process.env.SHARDWEAVE_LONG === '1';
/** What several ranks and slices change shows in the first steps; one rank takes all of them. */
const FEW_STEPS = isLong ? 20 : 4;

const run = (name: string, flags: string, numSteps?: number) =>
  runFlags([...referenceCase(name).flags, '--device', 'cpu', ...flags.split(' ')], { numSteps });

const singles = new Map<string, RunRecord>();
beforeAll(async () => {
  for (const family of FAMILIES) {
    singles.set(family, await run(`${family}-fp32`, '--strategy single'));
  }
});

describe('one rank has the losses of PyTorch', () => {
  it.each(FAMILIES)('%s in fp32', (family) => {
    expectReference(singles.get(family)!, `${family}-fp32`);
  });

  it.each([
    ...['llama-bf16', 'gemma3-bf16', 'biased-fp16', 'qwen2-fp16'],
    ...(isLong ? ['qwen3-bf16', 'llama-fp16', 'smollm3-bf16', 'smollm3-fp16', 'gemma3-fp16'] : []),
  ])('%s', async (name) => {
    expectReference(await run(name, '--strategy single'), name);
  });
});

/**
 * Llama runs in each strategy. Each other family runs in one or two, such that each strategy has
 * one of them.
 */
const CELLS = [
  ['llama', '--ranks 1'],
  ['llama', '--ranks 3 --no-reshard --checkpoint-activations'],
  ['llama', '--strategy ddp --ranks 3 --checkpoint-activations'],
  ['llama', '--strategy offload --slices 4 --micro-batches 2 --checkpoint-activations'],
  ['biased', '--strategy offload --slices 2'],
  ['qwen2', '--strategy ddp --ranks 2'],
  ['qwen3', '--ranks 2 --checkpoint-activations'],
  ['smollm3', '--ranks 3 --checkpoint-activations'],
  ['gemma3', '--ranks 2 --checkpoint-activations'],
  ['gemma3', '--strategy offload --slices 5 --checkpoint-activations'],
] as const;
/** With SHARDWEAVE_LONG=1 more families run over more numbers of ranks. */
const LONG_CELLS = [
  ['llama', '--ranks 2 --cpu-offload'],
  ['llama', '--strategy offload --slices 3'],
  ['biased', '--ranks 3'],
  ['qwen2', '--ranks 4 --no-reshard'],
  ['qwen3', '--strategy offload --slices 4 --checkpoint-activations'],
  ['llama', '--ranks 2'],
  ['llama', '--ranks 4 --checkpoint-activations'],
  ['llama', '--strategy ddp --ranks 2'],
  ['smollm3', '--strategy ddp --ranks 2'],
  ['smollm3', '--strategy offload --slices 3'],
  ['gemma3', '--strategy ddp --ranks 3'],
] as const;

describe('sharded and offloaded ones have those of one rank', () => {
  it.each(isLong ? [...CELLS, ...LONG_CELLS] : CELLS)('%s %s', async (family, flags) => {
    const record = await run(`${family}-fp32`, flags, FEW_STEPS);
    expectReference(record, `${family}-fp32`, FEW_STEPS);
    const single = losses(singles.get(family)!).slice(0, FEW_STEPS);
    const found = worstRatio(losses(record), single);
    expect(found).toBeLessThan(SHARDED_TOLERANCE);
  });

  it.each<[name: string, flags: string]>([
    ['qwen3-fp16', '--ranks 2 --checkpoint-activations'],
    ['qwen2-bf16', '--strategy offload --slices 3'],
    ...(isLong
      ? ([
          ['llama-bf16', '--ranks 3'],
          ['llama-fp16', '--strategy offload --slices 2'],
          ['gemma3-bf16', '--ranks 3'],
        ] satisfies [string, string][])
      : []),
  ])('%s %s', async (name, flags) => {
    expectReference(await run(name, flags, FEW_STEPS), name, FEW_STEPS);
  });
});

describe('documents packed in rows', () => {
  const novel = readFileSync(`${ROOT}tooling/reference/data/tiny/text.txt`, 'utf8');
  const { file, model } = jsonlFile(
    novel.split('. ').map((text, i) => ({ text: text.slice(0, 7 + ((i * 11) % 40)) })),
  );
  afterAll(() => rmSync(model, { recursive: true }));

  it.each(isLong ? ['llama', 'gemma3', 'qwen3'] : ['qwen3'])(
    '%s has the losses of one rank in every strategy',
    async (family) => {
      const config = `${ROOT}tooling/reference/data/decoders/${family}/config.json`;
      const fields = { ...JSON.parse(readFileSync(config, 'utf8')), vocab_size: LETTERS.vocabSize };
      writeFileSync(join(model, 'config.json'), JSON.stringify(fields));
      const data = `--model ${model} --tokenizer model --data ${file} --batch 12 --seq 32 --steps 5`;
      const packed = (flags: string) => runFlags(`${data} --device cpu ${flags}`.split(' '));
      const single = losses(await packed('--strategy single'));
      expect(new Set(single).size).toBe(5);
      for (const flags of [
        '--ranks 2 --checkpoint-activations',
        '--strategy ddp --ranks 3',
        '--strategy offload --slices 3 --micro-batches 2',
        '--strategy offload --slices 2 --checkpoint-activations',
      ]) {
        const found = worstRatio(losses(await packed(flags)), single);
        expect(found, flags).toBeLessThan(SHARDED_TOLERANCE);
      }
    },
  );
});

describe('a run', () => {
  const still = '--steps 2 --lr 0 --weight-decay 0 --dropout 0';

  it.each([
    ['llama', '--ranks 2'],
    ['qwen3', '--strategy offload --slices 2'],
    ['qwen2', '--strategy single'],
    ['gemma3', '--ranks 2'],
  ])(
    'a run of a %s with %s at rate 0 leaves the directory that it began with',
    async (family, flags) => {
      const out = newFolder();
      await run(`${family}-fp32`, `${flags} ${still} --out ${join(out, 'run')}`);
      const left = join(out, 'run', 'model');
      expect(readdirSync(left).sort()).toEqual(['config.json', 'model.safetensors']);
      const began = `${ROOT}tooling/reference/data/decoders/${family}`;
      const configOf = (path: string) =>
        parseModelConfig(readFileSync(`${path}/config.json`, 'utf8'));
      expect(configOf(left)).toEqual(configOf(began));
      const weightsOf = (path: string) =>
        readSafetensors(readFileSync(`${path}/model.safetensors`));
      const [found, wanted] = [weightsOf(left).tensors, weightsOf(began).tensors];
      expect([...found.keys()].sort()).toEqual([...wanted.keys()].sort());
      for (const [name, { data }] of wanted) {
        expect(Buffer.from(found.get(name)!.data).equals(data), name).toBe(true);
      }
    },
  );

  it('writes the same text, whatever held the model', async () => {
    const { flags } = referenceCase('qwen3-fp32');
    const texts = ['--strategy single', '--ranks 2', '--strategy offload'].map(async (strategy) => {
      const line = [...flags, '--device', 'cpu', ...`${strategy} ${still}`.split(' ')];
      return (await runFlags(line, { isQuiet: false })).text;
    });
    const [single, ...others] = await Promise.all(texts);
    expect(single!.length).toBeGreaterThan(20);
    expect(others).toEqual([single, single]);
  });
});
