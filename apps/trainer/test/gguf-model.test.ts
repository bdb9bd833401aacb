// A model in a GGUF file stands where a model directory does: a run over it has the losses of one
// over the directory with the same numbers.

import { cpSync, mkdirSync, readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { ggufFile, type MetadataValue } from '@shardweave/gguf';
import { openGguf } from '@shardweave/gguf/read';
import { makeModel, parseModelConfig, stateDict } from '@shardweave/nn';
import { cpuInfo, Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import type { Evaluation } from '../src/eval/evaluate-model.js';
import { FileSource } from '../src/files/file-source.js';
import { writePieces } from '../src/files/write-file.js';
import { readModelConfig, withModelState } from '../src/model/model-directory.js';
import { dryRun } from '../src/plan/dry-run.js';
import { leftBytes } from '../src/plan/left-bytes.js';
import { asWritten, ggufShards } from './support/gguf-shards.js';
import { parseFlags } from './support/parse-flags.js';
import { runCli } from './support/run-cli.js';
import { ROOT, runFlags } from './support/run-flags.js';
import { writeModel } from './support/write-model.js';

const folder = newFolder();
const directory = join(folder, 'llama');
const gpt2 = join(folder, 'gpt2');
const plain = join(folder, 'plain.gguf');
const blocks = join(folder, 'blocks.gguf');
/** The directory with the numbers of blocks. */
const decoded = join(folder, 'decoded');
const shard = (number: number) => join(folder, `shards-0000${number}-of-00002.gguf`);

const CONFIG = {
  model_type: 'llama',
  ...{ vocab_size: 512, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2 },
  ...{ num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64 },
  attention_bias: true,
};

const cli = async (line: string) => {
  const { code, out, err } = await runCli(line.split(' '));
  expect([code, err], line).toEqual([0, '']);
  return out;
};
const few = join(folder, 'few.txt');
const text = `${ROOT}tooling/reference/data/tiny/text.txt`;
const DATA = `--device cpu --threads 1 --cache ${folder} --data ${text} --batch 4 --seq 16 --steps 2`;
const run = (flags: string) => runFlags(`${DATA} ${flags}`.split(' '));
const lossesOf = async (flags: string) => (await run(flags)).steps.map(({ loss }) => loss);

async function evaluate(model: string): Promise<Evaluation> {
  const how = `--seq 16 --json --device cpu --threads 1 --cache ${folder}`;
  return JSON.parse(await cli(`eval --model ${model} --data ${few} ${how}`)) as Evaluation;
}

/** Writes the tensors of a file as two. */
async function writeShards(path: string): Promise<void> {
  const source = await FileSource.open(path);
  for (const [i, file] of (await ggufShards(source)).entries()) {
    await writePieces(shard(i + 1), file.pieces());
  }
  await source.close();
}

const GPT2 = {
  model_type: 'gpt2',
  ...{ vocab_size: 512, n_embd: 32, n_layer: 1, n_head: 2, n_positions: 64 },
};

/** Makes a directory with a tokenizer. */
function makePlace(place: string): void {
  mkdirSync(place);
  for (const name of ['tokenizer.json', 'tokenizer_config.json']) {
    cpSync(`${ROOT}tooling/tokenizer/${name}`, join(place, name));
  }
}

beforeAll(async () => {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const config = parseModelConfig(JSON.stringify(CONFIG));
  writeFileSync(few, readFileSync(text).subarray(0, 300));
  for (const [place, own] of [
    [directory, CONFIG],
    [gpt2, GPT2],
  ] as const) {
    makePlace(place);
    const config = parseModelConfig(JSON.stringify(own));
    const state = await stateDict(makeModel(device, config, { seed: 3 }));
    await writeModel(place, { config, state });
  }
  makePlace(decoded);
  await cli(`gguf --model ${directory} --out ${plain} --type f32`);
  await cli(`gguf --model ${directory} --out ${blocks} --type q8_0`);
  await writeShards(blocks);
  await withModelState(blocks, config, (state) => writeModel(decoded, { config, state }));
  device.dispose();
  await backend.dispose();
});

describe('a run over a GGUF file', () => {
  it('says of a NaN in it that the weights are damaged, and not the rate too high', async () => {
    const bytes = readFileSync(plain);
    bytes.writeFloatLE(Number.NaN, bytes.byteLength - 4);
    const damaged = join(folder, 'damaged.gguf');
    writeFileSync(damaged, bytes);
    const flags = `--lora-rank 2 --strategy single ${DATA}`;
    const { code, err } = await runCli(`train --model ${damaged} ${flags}`.split(' '));
    expect(err).toMatch(
      /^error: The loss is not a number at step 1, before any weight has changed: the model's own weights are damaged, [^\n]*\n$/,
    );
    expect(code).toBe(1);
  });

  it('has the losses of one over the directory, and leaves a model with its tokenizer', async () => {
    const out = join(folder, 'trained');
    const expected = await lossesOf(`--model ${directory} --strategy single`);
    expect(await lossesOf(`--model ${plain} --strategy single --out ${out}`)).toEqual(expected);
    const files = readdirSync(join(out, 'model'));
    expect(files).toEqual(expect.arrayContaining(['tokenizer.json', 'tokenizer_config.json']));
    const said = await cli(`generate --model ${out} --prompt Call --max-tokens 4 --device cpu`);
    expect(said).toMatch(/^Call/);
  });

  it('blocks have the losses of the numbers in them, at two ranks', async () => {
    const two = '--strategy fsdp --ranks 2';
    const expected = await lossesOf(`--model ${decoded} ${two}`);
    expect(await lossesOf(`--model ${shard(1)} ${two}`)).toEqual(expected);
  });

  it('trains adapters beside it, and goes on beside that very file alone', async () => {
    const lora = '--lora-rank 2 --ranks 2 --strategy ddp --lr 0.01';
    const out = join(folder, 'adapters');
    const expected = await lossesOf(`--model ${decoded} ${lora}`);
    const first = await lossesOf(
      `--model ${shard(1)} ${lora} --steps 1 --save-every 1 --out ${out}`,
    );
    const save = join(out, 'saves/step-000001');
    const last = await lossesOf(`--model ${shard(1)} ${lora} --resume ${save}`);
    expect([...first, ...last]).toEqual(expected);
    const { base_model_name_or_path: base } = JSON.parse(
      readFileSync(join(out, 'adapter/adapter_config.json'), 'utf8'),
    );
    expect(base).toBe(shard(1));
    // One number of the second file is another one.
    const changed = join(folder, 'changed');
    mkdirSync(changed);
    const [one, two] = [1, 2].map((number) => join(changed, basename(shard(number))));
    cpSync(shard(1), one!);
    const bytes = readFileSync(shard(2));
    bytes[bytes.length - 60]! ^= 1;
    writeFileSync(two!, bytes);
    const other = lossesOf(`--model ${one} ${lora} --resume ${save}`);
    await expect(other).rejects.toThrow(/another base model: .*-of-00002\.gguf \(\w{64}\), got/);
    const merged = join(folder, 'merged');
    const merge = (model: string) =>
      `merge --model ${model} --adapter ${out}/adapter --out ${merged} --quiet`;
    const { code, err } = await runCli(merge(shard(1)).split(' '));
    expect(code).toBe(2);
    expect(err).toMatch(/in q8_0 blocks: .* Give the 16-bit model that it was made from, or leave/);
    expect(err).toMatch(/gguf --model \S+ --adapter DIR/);
    await cli(merge(plain));
    expect(readdirSync(merged)).toEqual(expect.arrayContaining(['config.json', 'tokenizer.json']));
  });
});

describe('a GGUF file', () => {
  it('is what generate, eval, inspect, gguf and convert take', async () => {
    const generate = (model: string) =>
      cli(
        `generate --model ${model} --prompt Call --max-tokens 8 --temperature 0 --quiet --device cpu --threads 1`,
      );
    const said = await generate(decoded);
    expect(await generate(blocks)).toBe(said);
    expect(await generate(`${decoded} --base-type q8_0`)).toBe(said);
    const [found, expected] = [await evaluate(blocks), await evaluate(decoded)];
    expect([found.loss, found.tokens]).toEqual([expected.loss, expected.tokens]);
    const held = await cli(`inspect ${shard(1)}`);
    expect(held).toMatch(/a model\n/);
    expect(held).toMatch(/q8_0 .*\n.*f32/);
    const again = join(folder, 'again.gguf');
    await cli(`gguf --model ${plain} --out ${again} --type q8_0`);
    const metadataOf = async (path: string) => {
      const source = await FileSource.open(path);
      const { metadata } = await openGguf(source);
      await source.close();
      return [...metadata].map(([key, { value }]) => [key, key === 'general.name' ? 'x' : value]);
    };
    expect(await metadataOf(again)).toEqual(await metadataOf(blocks));
    await cli(`convert --from ${blocks} --to save --out ${join(folder, 'save')}`);
    expect(await readModelConfig(plain)).toMatchObject(CONFIG);
  });

  it.each([
    ['bf16', 'bf16', 'fp32', directory],
    ['bf16', 'bf16', 'fp32', gpt2],
    ['f16', 'fp32', 'fp16', directory],
  ])(
    'matrices in %s are computed with in %s, whatever the vectors are in',
    async (type, precision, other, from) => {
      const path = join(folder, `${type}-${from === gpt2 ? 'gpt2' : 'llama'}.gguf`);
      await cli(`gguf --model ${from} --out ${path} --type ${type}`);
      const { loss } = await evaluate(path);
      expect(loss).toBe((await evaluate(`${path} --precision ${precision}`)).loss);
      expect(loss).not.toBe((await evaluate(`${path} --precision ${other}`)).loss);
    },
  );

  it('stays in its blocks beside adapters, in 8.5 bits a number', async () => {
    const restOf = async (flags: string) => {
      const config = await resolveConfig(
        parseFlags(`${DATA} --lora-rank 2 --strategy single ${flags}`.split(' '), () => {}),
      );
      const run = await dryRun(config, { rank: 0, model: { info: cpuInfo({ threads: 1 }) } });
      return run.restBytes;
    };
    const kept = await restOf(`--model ${shard(1)}`);
    expect(kept).toEqual(await restOf(`--model ${decoded} --base-type q8_0`));
    const matrices = 512 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64) + 512 * 32;
    const wide = await restOf(`--model ${decoded}`);
    expect(wide.parameter - kept.parameter).toBe(matrices * (4 - 34 / 32));
  });

  it('is planned for as the directory is', async () => {
    const planned = async (model: string) => {
      const flags = `--model ${model} ${DATA} --ranks 2`.split(' ');
      const config = await resolveConfig(parseFlags(flags, () => {}));
      const run = await dryRun(config, { rank: 0, model: { info: cpuInfo({ threads: 1 }) } });
      const { saveBytes } = await leftBytes(config);
      return [saveBytes, run.restBytes, run.hostBytes];
    };
    expect(await planned(shard(1))).toEqual(await planned(decoded));
  });

  const cut = join(folder, 'cut.gguf');
  const other = join(folder, 'other.gguf');
  const alone = join(folder, 'alone');
  it.each<[string, string, RegExp]>([
    ['that is not the first', shard(2), /Name shards-00001-of-00002\.gguf, which stands for all/],
    [
      'that is cut off',
      cut,
      /cut\.gguf can't be used\. cut\.gguf: .* cut off: get it again\. Give a/,
    ],
    ['that is something else', other, /begins with 'GGUF', got 0x/],
    ['in a directory', alone, /has its weights in GGUF files\. Name the file, .*alone.m\.gguf\.$/m],
    ['that is not there', join(folder, 'none.gguf'), /nor a directory, nor a GGUF file/],
    ['in no directory', 'models/none.gguf', /nor a directory, nor a GGUF file/],
  ])('%s is refused in a sentence', async (_, model, message) => {
    cpSync(plain, cut);
    truncateSync(cut, readFileSync(plain).byteLength - 100);
    writeFileSync(other, 'This is no model of any kind.');
    mkdirSync(alone, { recursive: true });
    cpSync(plain, join(alone, 'm.gguf'));
    const { code, err } = await runCli(`train --model ${model} ${DATA}`.split(' '));
    expect(code).toBe(2);
    expect(err).toMatch(message);
    expect(err).not.toMatch(/\n\s+at /);
  });

  it('an unknown way to cut texts needs another tokenizer', async () => {
    const source = await FileSource.open(plain);
    const { metadata, tensors } = await openGguf(source);
    const pre: MetadataValue = { type: 'string', value: 'grok-2' };
    const changed = new Map([
      ...(metadata as ReadonlyMap<string, MetadataValue>),
      ['tokenizer.ggml.pre', pre],
    ]);
    const strange = join(folder, 'strange.gguf');
    await writePieces(strange, ggufFile(changed, [...tensors.values()].map(asWritten)).pieces());
    await source.close();
    await expect(run(`--model ${strange}`)).rejects.toThrow(
      /--tokenizer model: .* got "grok-2"\. .* choose --tokenizer byte/,
    );
    const out = join(folder, 'bytes');
    expect(await run(`--model ${strange} --tokenizer byte --out ${out}`)).toBeDefined();
    expect(readdirSync(join(out, 'model'))).not.toContain('tokenizer.json');
  });
});
