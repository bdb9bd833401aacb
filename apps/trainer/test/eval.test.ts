// The command `eval` is compared with PyTorch's perplexity (tooling/reference) and with sums by
// hand.

import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  applyLora,
  type LanguageModel,
  loadStateDict,
  makeModel,
  parseModelConfig,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { firstBytes } from '../src/data/tokenize.js';
import { loadTokenizer } from '../src/data/tokenizer.js';
import type { Evaluation } from '../src/eval/evaluate-model.js';
import { writeDirectory } from '../src/files/write-file.js';
import { adapterFiles } from '../src/model/adapter-directory.js';
import { jsonlFile } from './support/jsonl-data.js';
import { LETTERS } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const DATA = `${ROOT}tooling/reference/data`;
const TEXT = `${DATA}/tiny/text.txt`;
const expected = JSON.parse(readFileSync(`${DATA}/perplexity/expected.json`, 'utf8')) as {
  readonly seq: number;
  readonly cases: readonly {
    readonly name: string;
    readonly targets: number;
    readonly summedLoss: number;
    readonly perplexity: number;
  }[];
};

const scratch = newFolder();

const run = (flags: string) =>
  runCli(['eval', ...`${flags} --device cpu --threads 1 --cache ${scratch}`.split(' ')]);

async function evaluated(flags: string): Promise<Evaluation> {
  const { code, out, err } = await run(`${flags} --json`);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return JSON.parse(out) as Evaluation;
}

function written(name: string, text: string): string {
  const path = join(scratch, name);
  writeFileSync(path, text);
  return path;
}

describe('eval', () => {
  it.each(expected.cases)('the perplexity of $name is that of PyTorch', async (wanted) => {
    const { name, targets, summedLoss, perplexity } = wanted;
    const found = await evaluated(
      `--model ${DATA}/${name} --tokenizer byte --data ${TEXT} --seq ${expected.seq}`,
    );
    // The last row is shorter. Only the first byte is not predicted.
    expect(found).toMatchObject({ targets, tokens: targets + 1, bytes: targets, documents: 0 });
    expect(Math.abs(found.perplexity / perplexity - 1)).toBeLessThan(1e-4);
    expect(Math.abs((found.loss * targets) / summedLoss - 1)).toBeLessThan(1e-5);
    expect(found.bitsPerByte).toBeCloseTo(found.loss / Math.LN2, 12);
  });

  it('is the same at rest off the device, of a run, in other batches, and in lines', async () => {
    const flags = `--tokenizer byte --data ${TEXT} --seq 64`;
    const found = await evaluated(`--model ${DATA}/tiny ${flags}`);
    const budget = '--strategy offload --device-budget 1200000 --batch 2';
    cpSync(`${DATA}/tiny`, join(scratch, 'run/model'), { recursive: true });
    for (const other of [budget, '--batch 5', '--precision fp32']) {
      const { loss, targets } = await evaluated(`--model ${scratch}/run ${flags} ${other}`);
      expect(targets).toBe(found.targets);
      expect(Math.abs(loss / found.loss - 1), other).toBeLessThan(2e-6);
    }
    const { loss: rounded } = await evaluated(`--model ${DATA}/tiny ${flags} --precision bf16`);
    expect(rounded).not.toBe(found.loss);
    expect(Math.abs(rounded / found.loss - 1)).toBeLessThan(5e-3);
    expect(await run(`--model ${DATA}/tiny ${flags}`)).toEqual({
      code: 0,
      err: '',
      out: [
        'targets    6001 in rows of 64\n',
        `loss       ${found.loss.toFixed(6)}\n`,
        `perplexity ${found.perplexity.toFixed(4)}\n`,
        `bits/byte  ${found.bitsPerByte!.toFixed(6)} of 6001 bytes\n`,
      ].join(''),
    });
  });

  it('takes a text that is shorter than a row', async () => {
    const data = written('short.txt', 'Call');
    const flags = `--model ${DATA}/tiny --tokenizer byte --data ${data}`;
    const found = await evaluated(flags);
    expect(found).toMatchObject({ targets: 3, bytes: 3 });
    const seq3 = await evaluated(`${flags} --seq 3`);
    expect(Math.abs(seq3.loss / found.loss - 1)).toBeLessThan(2e-6);
  });
});

describe('documents', () => {
  const LINES = [
    { prompt: 'ab', completion: 'cde' },
    { prompt: 'never mind', completion: 'x' },
    { prompt: 'q', completion: 'how long precisely' },
  ];
  const { file, model } = jsonlFile(LINES);
  const device = new Device(createReferenceBackend());
  let plain: LanguageModel;
  beforeAll(async () => {
    const config = parseModelConfig(readFileSync(join(model, 'config.json'), 'utf8'));
    plain = makeModel(device, config, { seed: 5 });
    const state = await stateDict(plain);
    writeFileSync(join(model, 'model.safetensors'), writeSafetensors(state));
  });
  afterAll(() => {
    device.dispose();
    rmSync(model, { recursive: true });
  });

  /**
   * Returns the sum of -log of the probability of each target that counts, with each document
   * computed alone.
   */
  async function byHand(of: LanguageModel, countsPrompts: boolean): Promise<[number, number]> {
    let [sum, number] = [0, 0];
    for (const { prompt, completion } of LINES) {
      const tokens = [...Buffer.from(prompt + completion), LETTERS.end.id];
      const seq = tokens.length - 1;
      const logits = (await device.noGrad(() =>
        device.scope(async () =>
          (await of.call(device.tensor(Uint32Array.from(tokens.slice(0, -1)), [1, seq]))).toArray(),
        ),
      )) as Float32Array;
      for (let i = countsPrompts ? 0 : prompt.length - 1; i < seq; i++) {
        const row = logits.subarray(i * LETTERS.vocabSize, (i + 1) * LETTERS.vocabSize);
        const all = row.reduce((total, logit) => total + Math.exp(logit), 0);
        sum += Math.log(all) - row[tokens[i + 1]!]!;
        number += 1;
      }
    }
    return [sum, number];
  }

  it.each([
    ['answers alone', '', false],
    ['prompts, too', ' --train-on-prompt', true],
  ])('count by %s', async (_what, flag, countsPrompts) => {
    const [sum, targets] = await byHand(plain, countsPrompts);
    const found = await evaluated(`--model ${model} --data ${file} --batch 2${flag}`);
    expect(found).toMatchObject({ targets, documents: 3 });
    expect(Math.abs(found.loss / (sum / targets) - 1)).toBeLessThan(1e-5);
    // An end token counts as a target and has no bytes.
    expect(Object.keys(found)).not.toContain('bitsPerByte');
    const { out } = await run(`--model ${model} --data ${file}${flag}`);
    expect(out).toContain('perplexity');
    expect(out).not.toContain('bits');
  });

  it('are judged with adapters, which say more than the model alone', async () => {
    const config = parseModelConfig(readFileSync(join(model, 'config.json'), 'utf8'));
    const tuned = makeModel(device, config, { seed: 5 }).eval() as LanguageModel;
    const lora = applyLora(tuned, { rank: 2, alpha: 8, seed: 3 });
    const state = await stateDict(tuned);
    for (const [name, { data }] of state) {
      if (name.includes('lora_B')) {
        const factor = new Float32Array(data.buffer, data.byteOffset, data.byteLength / 4);
        factor.set(factor.map((_, i) => ((i * 7) % 11) / 5 - 1));
      }
    }
    await loadStateDict(tuned, state);
    const adapter = join(scratch, 'adapter');
    const files = adapterFiles(state, { config: lora, base: model, fanInFanOut: true });
    await writeDirectory(adapter, files);
    const [sum, targets] = await byHand(tuned, false);
    const [without] = await byHand(plain, false);
    expect(Math.abs(sum / without - 1)).toBeGreaterThan(1e-3);
    for (const strategy of ['single', 'offload']) {
      const flags = `--model ${model} --data ${file} --strategy ${strategy}`;
      const { loss } = await evaluated(`${flags} --adapter ${adapter}`);
      expect(Math.abs(loss / (sum / targets) - 1), strategy).toBeLessThan(1e-5);
    }
  });
});

it('the bytes of a first token are counted where it spells something', async () => {
  const gpt2 = await loadTokenizer('gpt2');
  const ofText = (text: string) => firstBytes(text, gpt2.encode(text), gpt2);
  expect(ofText('Call me')).toBe(4);
  expect(ofText('\u2014 me')).toBe(3);
  expect(ofText('\u{1fae8} me')).toBe(0); // This is a part of a face.
  expect(ofText('')).toBeUndefined();
});

describe('eval says in a sentence', () => {
  const empty = () => written('empty.txt', '');
  const one = () => written('one.txt', 'a');
  const nothing = () => written('none.jsonl', '\n');
  it.each([
    ['no weights', () => '--model nano', /^error: --model: expected a directory with config\.json/],
    [
      'no model',
      () => '--model ./models/none',
      /got \.\/models\/none, which is not there\. Train one first/,
    ],
    ['no flag', () => '', /required option '--model <DIR\|ORG\/NAME>' not specified\. See --help/],
    ['an empty file', () => `--model ${DATA}/tiny --data ${empty()}`, /empty\.txt has no tokens/],
    ['a letter', () => `--model ${DATA}/tiny --data ${one()}`, /one\.txt has one token, but a/],
    ['no documents', () => `--model ${DATA}/tiny --data ${nothing()}`, /end token|no documents/],
    ['no file', () => `--model ${DATA}/tiny --data none.txt`, /none\.txt is not there/],
    ['long rows', () => `--model ${DATA}/tiny --seq 65`, /beyond the model's 64 positions/],
    ['a text of prompts', () => `--model ${DATA}/tiny --train-on-prompt`, /is for documents/],
    [
      'a budget for nothing',
      () => `--model ${DATA}/tiny --data ${TEXT} --strategy offload --device-budget 1000`,
      /^error: --device-budget: /,
    ],
  ])('%s', async (_what, flags, wanted) => {
    const { code, out, err } = await run(flags());
    expect({ code, out }).toEqual({ code: 2, out: '' });
    expect(err).toMatch(wanted);
    expect(err.trim().split('\n')).toHaveLength(1);
  });
});
