// A run's config file has the same flags in YAML or JSON, is checked alike, and is written by each
// run.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse as parseYaml } from 'yaml';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { configSchema } from '../src/config/flags.js';
import { parseFlags } from './support/parse-flags.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const folder = newFolder();

const TEXT = `${ROOT}tooling/reference/data/tiny/text.txt`;
let numFiles = 0;

function fileOf(text: string, extension = 'yaml'): string {
  const path = join(folder, `run-${numFiles++}.${extension}`);
  writeFileSync(path, text);
  return path;
}

const parse = (line: string) => parseFlags(line.split(' ').filter(Boolean), () => {});

describe('a config file', () => {
  it('holds flags by their names, in YAML or JSON, and flags that are typed count before it', () => {
    const values = {
      ranks: 4,
      device: ['cpu', 'webgpu'],
      'lora-targets': ['q_proj'],
      lr: 1e-4,
      sync: false,
      'fp32-reduce': true,
      'save-every': '5m',
      'gather-cap': '64MiB',
    };
    const yaml = fileOf(
      'ranks: 4\ndevice: [cpu, webgpu]\nlora-targets: [q_proj]\nlr: 1e-4\nsync: false\nfp32-reduce: true\nsave-every: 5m\ngather-cap: 64MiB\n',
    );
    const json = fileOf(JSON.stringify(values), 'json');
    const typed =
      '--ranks 4 --device cpu,webgpu --lora-targets q_proj --lr 1e-4 --no-sync --fp32-reduce --save-every 5m --gather-cap 64MiB';
    for (const path of [yaml, json]) {
      expect(parse(`--config ${path}`)).toEqual(parse(typed));
      expect(parse(`--config ${path} --ranks 3 --sync --no-fp32-reduce`)).toEqual(
        parse(`${typed} --ranks 3 --sync --no-fp32-reduce`),
      );
    }
    expect(parse(`--config ${fileOf('')}`)).toEqual(parse(''));
    expect(parse('--no-fp32-reduce')).toEqual(parse(''));
  });

  it.each([
    ['ranks: 2\nmodle: gpt2', 'line 2: unknown key "modle". Did you mean model? Keys are the'],
    ['grad_accum: 2', 'line 1: unknown key "grad_accum". Did you mean grad-accum?'],
    ['\nbatch: x', 'line 2: batch: expected a whole number of at least 1, got "x".'],
    ['batch: 1.5', 'batch: expected a whole number of at least 1, got 1.5.'],
    [
      'steps: 9007199254740993',
      'steps: expected a whole number of at least 1, at most 9007199254740991, got 9007199254740993.',
    ],
    [
      'seed: 1e99',
      'seed: expected a whole number of at least 0, at most 9007199254740991, got 1e99.',
    ],
    ['precision: half', 'expected one of fp32, fp16, bf16, got "half". Did you mean fp16?'],
    ['lr:', 'lr: expected a number of at least 0, got null.'],
    [
      'device: gpu',
      'device: expected auto, webgpu, cpu, or an adapter such as webgpu:4090 or webgpu:1, or a list',
    ],
    ['save-every: 0m', 'save-every: expected a number of steps such as 100, or of minutes'],
    ['- ranks', 'line 1: expected flags as "key: value" lines, such as "ranks: 2".'],
    ['ranks: 2\nranks: 3', 'line 2: Map keys must be unique. Give YAML or JSON.'],
    ['ranks: [', 'Give YAML or JSON.'],
  ])('is refused with its line: %j', async (text, expected) => {
    const path = fileOf(text);
    const { code, out, err } = await runCli(['train', '--config', path]);
    expect({ code, out }).toEqual({ code: 2, out: '' });
    expect(err).toContain(`error: --config: ${path}, line `);
    expect(err).toContain(expected);
  });

  // `npx vitest run apps/trainer/test/config-file.test.ts -u` rewrites it.
  it('has a published schema that says what the flags say', async () => {
    const text = `${JSON.stringify(configSchema(), null, 2)}\n`;
    await expect(text).toMatchFileSnapshot('../config.schema.json');
  });

  it('a file that is not there is refused', async () => {
    const { code, err } = await runCli(['train', '--config', join(folder, 'nowhere.yaml')]);
    expect(code).toBe(2);
    expect(err).toMatch(/nowhere\.yaml can't be read \(no such file or directory\)\. Give a YAML/);
  });

  it('says how long a run is, unless that is typed in the other way', () => {
    const path = join(folder, 'long.yaml');
    const flags = (typed: string) =>
      parseFlags(['--config', path, ...typed.split(' ').filter(Boolean)], () => {});
    writeFileSync(path, 'epochs: 2.5\n');
    expect(flags('')).toMatchObject({ epochs: 2.5, steps: undefined });
    expect(flags('--steps 3')).toMatchObject({ epochs: undefined, steps: 3 });
    writeFileSync(path, 'steps: 7\n');
    expect(flags('--epochs 2')).toMatchObject({ epochs: 2, steps: undefined });
  });

  it('the file of a run of some epochs has its steps, and the same epochs go on to the same step', async () => {
    const text = join(folder, 'nine-rows.txt');
    writeFileSync(text, 'x'.repeat(9 * 8 + 1));
    const out = join(folder, 'epochs');
    const line = `--model nano --data ${text} --device cpu --strategy single --seq 8 --batch 4 --epochs 0.8 --save-every 5 --out ${out}`;
    const run = (more = '') => runCli(['train', ...`${line}${more}`.split(' ')]);
    expect(await run()).toMatchObject({
      code: 0,
      out: expect.stringMatching(/4 rows of 8 tokens, 2 steps = 0\.89 epochs of 9 rows/),
    });
    const written = parseYaml(readFileSync(join(out, 'config.yaml'), 'utf8')) as object;
    expect(written).toMatchObject({ steps: 2 });
    expect(written).not.toHaveProperty('epochs');
    expect((await run(' --resume auto')).out).toMatch(/is done after step 2 of 2: nothing is left/);
  });

  it('the file of a run makes it again, bit for bit, and is one that the schema allows', async () => {
    const first = join(folder, 'first');
    const second = join(folder, 'second');
    const flags = `--model nano --data ${TEXT} --device cpu --seq 16 --batch 6 --steps 4 --eval-every 2 --valid-fraction 0.2 --dropout 0.1 --ranks 3 --lr 0.01 --no-sync --grad-accum 2 --save-every 3 --quiet`;
    const losses = (out: string) =>
      readFileSync(join(out, 'metrics.jsonl'), 'utf8')
        .trim()
        .split('\n')
        .map((line) => {
          const { loss, gradNorm, validLoss } = JSON.parse(line) as Record<string, unknown>;
          return { loss, gradNorm, validLoss };
        });
    const run = (line: string) => runCli(['train', ...line.split(' ')]);
    expect(await run(`${flags} --out ${first}`)).toEqual({ code: 0, out: '', err: '' });
    const config = join(first, 'config.yaml');
    const again = await run(`--config ${config} --out ${second} --quiet`);
    expect(again).toEqual({ code: 0, out: '', err: '' });
    expect(losses(second)).toEqual(losses(first));
    expect(losses(first)).toHaveLength(4);
    const written = parseYaml(readFileSync(config, 'utf8')) as Record<string, unknown>;
    expect(written).toMatchObject({
      ranks: 3,
      dropout: 0.1,
      sync: false,
      'save-every': 3,
      warmup: 1,
    });
    expect(parseYaml(readFileSync(join(second, 'config.yaml'), 'utf8'))).toEqual({
      ...written,
      out: second,
    });
    const { properties, additionalProperties } = configSchema() as {
      readonly properties: object;
      readonly additionalProperties: boolean;
    };
    expect(additionalProperties).toBe(false);
    expect(Object.keys(properties)).toEqual(expect.arrayContaining(Object.keys(written)));
    expect(properties).toMatchObject({
      batch: { type: 'integer', minimum: 1 },
      sync: { type: 'boolean' },
      schedule: { enum: expect.arrayContaining(['cosine']) },
    });
  });
});
