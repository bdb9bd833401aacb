import { cpSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parameterCount } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { UsageError } from '../src/errors.js';
import { PRESETS } from '../src/model/presets.js';
import { lettersDirectory } from './support/letters-tokenizer.js';
import { parseFlags } from './support/parse-flags.js';

const resolve = (line: string, cores = 2) =>
  resolveConfig(
    parseFlags(line.split(' ').filter(Boolean), () => {}),
    { cores },
  );
const TINY = new URL('../../../tooling/reference/data/tiny', import.meta.url).pathname;

function modelDirectory(config: unknown): string {
  const directory = newFolder();
  writeFileSync(
    join(directory, 'config.json'),
    typeof config === 'string' ? config : JSON.stringify(config),
  );
  return directory;
}
const SMALL = { vocab_size: 256, n_positions: 32, n_embd: 16, n_layer: 1, n_head: 2 };

describe('resolveConfig', () => {
  it('no flags are two ranks of fsdp on the default preset', async () => {
    expect(await resolve('')).toMatchObject({
      strategy: 'fsdp',
      ranks: 2,
      device: ['auto', 'auto'],
      threads: 1,
      tokenizer: 'byte',
      lr: 4e-3,
      seq: PRESETS.micro.config.n_positions,
      reshard: true,
      sync: true,
    });
  });

  it('makes defaults from other flags', async () => {
    expect(await resolve('--strategy single')).toMatchObject({ ranks: 1, threads: 2 });
    expect(await resolve('--ranks 4')).toMatchObject({ threads: 1 });
    expect(await resolve('--ranks 2', 9)).toMatchObject({ threads: 4 });
    expect(await resolve('--ranks 2', 256)).toMatchObject({ threads: 64 });
    expect(await resolve('--model gpt2')).toMatchObject({
      tokenizer: 'gpt2',
      seq: 256,
      modelConfig: { attn_pdrop: 0.1, embd_pdrop: 0.1, resid_pdrop: 0.1 },
    });
    expect(await resolve('--model gpt2 --dropout 0')).toMatchObject({
      modelConfig: { attn_pdrop: 0, embd_pdrop: 0, resid_pdrop: 0 },
    });
    expect(await resolve('--schedule constant')).toMatchObject({ warmup: 0 });
    expect(await resolve('--device cpu,webgpu')).toMatchObject({ device: ['cpu', 'webgpu'] });
  });

  it("takes a directory's own tokenizer where it has one", async () => {
    const own = `--model ${lettersDirectory()}`;
    expect(await resolve(own)).toMatchObject({ tokenizer: 'model' });
    expect(await resolve(`${own} --tokenizer byte`)).toMatchObject({ tokenizer: 'byte' });
    const bare = `--model ${lettersDirectory({ isBare: true })}`;
    expect(await resolve(bare)).toMatchObject({ tokenizer: 'byte' });
    await expect(resolve(`${bare} --tokenizer model`)).rejects.toThrow(
      /^--tokenizer model: expected a directory with tokenizer\.json, got --model /,
    );
  });

  it('offload runs on one rank, and its flags are for it alone', async () => {
    expect(await resolve('--strategy offload --device-budget 5000')).toMatchObject({
      ranks: 1,
      deviceBudget: 5000,
      offloadDir: undefined,
    });
    for (const line of [
      '--strategy offload --ranks 2',
      '--strategy offload --slices 2 --device-budget 5000',
      '--slices 2',
      '--micro-batches 2',
      '--strategy ddp --device-budget 5000',
      '--strategy single --offload-dir x',
      '--strategy ddp --cpu-offload',
      '--cpu-offload --offload-dir x',
    ]) {
      await expect(resolve(line), line).rejects.toThrow(UsageError);
    }
  });

  it('reads the shape of a directory', async () => {
    expect(await resolve(`--model ${TINY} --seq 32`)).toMatchObject({
      model: { kind: 'directory', path: TINY },
      modelConfig: {
        vocab_size: 256,
        n_positions: 64,
        n_layer: 2,
        n_embd: 96,
        n_head: 4,
        resid_pdrop: 0,
      },
    });
  });

  it.each([
    ['--strategy single --ranks 2', /single runs on one rank, got --ranks 2/],
    ['--seq 65', /--seq 65 is beyond the model's 64 positions/],
    ['--device cpu,cpu,cpu', /names 3 devices for 2 ranks/],
    ['--model nowhere', /--model nowhere is neither a preset \(nano, .*\) nor a directory/],
  ])('refuses %s in a sentence', async (line, message) => {
    const error = await resolve(line).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(UsageError);
    expect((error as Error).message).toMatch(message);
  });

  it.each([
    ['{', /expected JSON/],
    [{ ...SMALL, vocab_size: 0 }, /vocab_size/],
    [{ ...SMALL, model_type: 't5' }, /model_type/],
    [{ ...SMALL, activation_function: 'relu' }, /activation_function/],
    [{ ...SMALL, n_inner: -1 }, /n_inner/],
    [{ ...SMALL, n_head: 3 }, /n_head/],
  ])('refuses a config.json of another model', async (config, message) => {
    const error = await resolve(`--model ${modelDirectory(config)}`).catch(
      (thrown: unknown) => thrown,
    );
    expect(error).toBeInstanceOf(UsageError);
    expect((error as Error).message).toMatch(message);
  });

  it('takes a directory without config.json for a mistake', async () => {
    const directory = newFolder();
    await expect(resolve(`--model ${directory}`)).rejects.toThrow(
      /config\.json can't be used \(no such file or directory\)\. Give a directory/,
    );
  });

  it('finds the model in the --out of a run, and what weights there are', async () => {
    const run = newFolder();
    const model = join(run, 'model');
    cpSync(TINY, model, { recursive: true });
    const found = async (path: string) => (await resolve(`--model ${path} --seq 32`)).model;
    expect(await found(run)).toEqual({ kind: 'directory', path: model, hasWeights: true });
    rmSync(join(model, 'model.safetensors'));
    expect(await found(model)).toEqual({ kind: 'directory', path: model, hasWeights: false });
    for (const name of ['pytorch_model.bin', 'model-00001-of-00002.safetensors']) {
      writeFileSync(join(model, name), '');
      await expect(found(run)).rejects.toThrow(
        `has weights in ${name}, but none in model.safetensors`,
      );
      rmSync(join(model, name));
    }
  });
});

describe('parameterCount', () => {
  it("is GPT-2's own number, and the reference model's", () => {
    expect(parameterCount(PRESETS.gpt2.config)).toBe(124_439_808);
    expect(parameterCount(PRESETS['gpt2-xl'].config)).toBe(1_557_611_200);
    expect(parameterCount(PRESETS.micro.config)).toBe(834_304);
  });
});
