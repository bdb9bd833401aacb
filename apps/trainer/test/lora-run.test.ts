// The command trains with LoRA: a base model goes in, adapters come out in PEFT's files, and
// training continues from them.

import { appendFileSync, cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import {
  type HostTensor,
  peftLayers,
  readPeftState,
  readSafetensors,
  safetensorsPieces,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { loadTokenizer } from '../src/data/tokenizer.js';
import { SignalError } from '../src/errors.js';
import { writeDirectory } from '../src/files/write-file.js';
import { Interrupt } from '../src/interrupt.js';
import { readAdapter } from '../src/model/adapter-directory.js';
import { trainedFiles } from '../src/model/write-trained.js';
import { sampleText } from '../src/rank/sample-text.js';
import { trainedState } from '../src/rank/strategies/model-saves.js';
import { parseFlags } from './support/parse-flags.js';
import { runCli } from './support/run-cli.js';
import { ROOT, runFlags } from './support/run-flags.js';
import { trainOn } from './support/train-on.js';

const BASE = 'tooling/reference/data/tiny';
const DATA = `--data ${BASE}/text.txt --tokenizer byte --order sequential --batch 4 --seq 16 --lr 0.01 --schedule constant`;
const run = (flags: string) => runFlags(`--model ${BASE} ${DATA} ${flags}`.split(' '));
const lossesOf = async (flags: string) => (await run(flags)).steps.map(({ loss }) => loss);

const openTokenizer = () => loadTokenizer('byte', undefined);

const adaptersIn = (directory: string) =>
  readPeftState(
    readSafetensors(readFileSync(join(directory, 'adapter/adapter_model.safetensors'))).tensors,
  );

describe('adapters', () => {
  it('leave PEFT files alone, and training goes on from them', async () => {
    const out = newFolder();
    const lora = '--strategy fsdp --ranks 2 --lora-rank 4 --lora-targets c_attn,c_fc';
    const losses = await lossesOf(`${lora} --steps 6 --out ${out}`);
    expect(losses.at(-1)!).toBeLessThan(losses[0]!);
    expect(readdirSync(out).includes('model')).toBe(false);
    const config = await readAdapter(join(out, 'adapter'));
    const layers = [0, 1].flatMap((i) =>
      ['attn.c_attn', 'mlp.c_fc'].map((name) => `transformer.h.${i}.${name}`),
    );
    expect(config).toEqual({ rank: 4, alpha: 8, dropout: 0, layers });
    expect(peftLayers(adaptersIn(out))).toEqual(layers);
    // These are the same rows again, now with the adapters that were trained on them.
    const again = await lossesOf(`--strategy single --ranks 1 --adapter ${out}/adapter --steps 1`);
    expect(again[0]!).toBeLessThan(losses[0]! - 0.05);
    const flags = `--model ${BASE} --adapter ${out}/adapter --lora-dropout 0.25`;
    const { lora: goingOn } = await resolveConfig(parseFlags(flags.split(' '), () => {}));
    expect(goingOn).toMatchObject({ rank: 4, alpha: 8, dropout: 0.25 });
  });

  it('train alike by every strategy, and a save goes from one to another', async () => {
    const lora = '--lora-rank 4';
    const expected = await lossesOf(`${lora} --strategy single --steps 5`);
    const save = newFolder();
    const ways = {
      fsdp: `--strategy fsdp --ranks 3 --save-every 4 --out ${save}`,
      ddp: '--strategy ddp --ranks 2',
      offload: '--strategy offload',
    };
    for (const [name, flags] of Object.entries(ways)) {
      const losses = await lossesOf(`${lora} ${flags} --steps 4`);
      losses.forEach((loss, step) => {
        const difference = Math.abs(loss - expected[step]!) / expected[step]!;
        expect(difference, `${name}, step ${step}`).toBeLessThan(2e-6);
      });
    }
    const saved = join(save, 'saves/step-000004');
    const bytes = readdirSync(saved).reduce(
      (total, name) => total + readFileSync(join(saved, name)).byteLength,
      0,
    );
    expect(bytes).toBeLessThan(900_000 / 2); // The base has 243,456 parameters of four bytes.
    const flags = `${lora} --strategy offload --resume ${saved} --steps 5`;
    const [resumed] = await lossesOf(flags);
    expect(Math.abs(resumed! - expected[4]!) / expected[4]!).toBeLessThan(2e-6);
    // These are adapters of rank 4 beside another model of the same shape.
    const other = newFolder();
    cpSync(`${ROOT}${BASE}/config.json`, join(other, 'config.json'));
    const wrong = runFlags(`--model ${other} ${DATA} ${flags}`.split(' '));
    await expect(wrong).rejects.toThrow(/another base model: .*tiny \(\w{64}\), got .*--model/);
    await expect(run(`${flags} --lora-alpha 1`)).rejects.toThrow(
      /another --lora-alpha: 8, got 1\. Give --lora-alpha/,
    );
  });

  it('are not trained beside a part of a deeper model', async () => {
    const directory = newFolder();
    cpSync(`${ROOT}${BASE}`, directory, { recursive: true });
    const path = join(directory, 'config.json');
    const config = JSON.parse(readFileSync(path, 'utf8')) as object;
    writeFileSync(path, JSON.stringify({ ...config, n_layer: 1 }));
    const flags = `--model ${directory} ${DATA} --lora-rank 4 --strategy single --steps 1`;
    await expect(runFlags(flags.split(' '))).rejects.toThrow(/Unexpected: transformer\.h\.1\./);
  });

  it('stand beside a base of 16 bits', async () => {
    const wide = await lossesOf('--lora-rank 4 --strategy single --steps 3');
    const narrow = await run('--lora-rank 4 --precision bf16 --strategy fsdp --ranks 2 --steps 3');
    narrow.steps.forEach(({ loss }, step) => {
      expect(Math.abs(loss - wide[step]!) / wide[step]!).toBeLessThan(5e-3);
    });
  });

  it('adapters beside a base of 16 bits write a text, the same by each strategy', async () => {
    const ways = ['fsdp', 'fsdp --ranks 2', 'ddp --ranks 2', 'offload'].map(async (strategy) => {
      const flags = `--model ${BASE} ${DATA} --lora-rank 4 --precision bf16 --strategy ${strategy} --steps 1 --lr 0`;
      return (await runFlags(flags.split(' '), { isQuiet: false })).text;
    });
    const [text, ...others] = await Promise.all(ways);
    expect(text!.length).toBeGreaterThan(10);
    expect(others).toEqual([text, text, text]);
  });

  it.each([
    'fsdp --ranks 2',
    'fsdp --ranks 2 --precision bf16',
    'fsdp --ranks 2 --cpu-offload',
    'ddp --ranks 2',
    'ddp --ranks 2 --precision bf16',
    'offload',
    'single',
    'single --precision bf16',
  ])('end alone, without the frozen base or a second model, by %s', async (strategy) => {
    const flags = `--model ${ROOT}${BASE} ${DATA} --lora-rank 1 --lora-targets c_fc --strategy ${strategy} --steps 1`;
    const config = await resolveConfig(parseFlags(flags.split(' '), () => {}));
    const factors = 2 * (64 + 256); // two layers, each with lora_A [1, 64] and lora_B [256, 1]
    await trainOn(flags, (text) => text, {
      onTrained: async (trained, rank) => {
        const { model, group } = trained.text;
        const { device } = model;
        const before = group?.stats();
        const live = device.memory().live.total;
        device.ledger.resetPeak();
        const state = await trainedState(trained);
        const received = (group?.stats().bytesReceived ?? 0) - (before?.bytesReceived ?? 0);
        // Each tensor of a shard is padded to 128 elements.
        expect(received).toBeLessThanOrEqual(rank === 0 ? 4 * (factors + 4 * 128) : 0);
        expect(device.ledger.peak().total).toBe(live);
        const directory = newFolder();
        if (rank === 0) {
          await writeDirectory(directory, await trainedFiles({ config, state }));
          const written = readFileSync(join(directory, 'adapter_model.safetensors'));
          const { tensors } = readSafetensors(written);
          expect(tensors.size).toBe(4);
        }
        if (rank === 0 || group !== undefined) {
          device.ledger.resetPeak();
          const text = { device, config, maxTokens: 2, openTokenizer };
          await sampleText(trained.text, text);
          // The logits and what a unit gathers are less than half of the base.
          const base = config.precision === 'fp32' ? 4 * 243_456 : 2 * 243_456;
          expect(device.ledger.peak().total - live).toBeLessThan(0.75 * base);
        }
      },
    });
  });
});

it.each([
  ['--lora-rank 4 --lora-targets q_proj', /c_attn.*got 'q_proj'.*--lora-targets/],
  ['--adapter nowhere', /--adapter: .*nowhere can't be used .*PEFT/],
  [`--adapter ${BASE} --lora-rank 2`, /got --lora-rank too/],
  ['--lora-rank 0', /--lora-rank: expected a whole number of at least 1/],
  ['--lora-targets ,', /--lora-targets/],
])('%s is refused', async (flags, message) => {
  await expect(run(`${flags} --strategy single --steps 1`)).rejects.toThrow(message);
});

describe('merge', () => {
  const merge = (...args: string[]) => runCli(['merge', ...args]);

  it('gives a model that computes what base and adapters do', async () => {
    const out = newFolder();
    await run(`--strategy single --lora-rank 4 --steps 5 --out ${out}`);
    const merged = join(newFolder(), 'merged');
    const args = ['--model', `${ROOT}${BASE}`, '--adapter', `${out}/adapter`, '--out', merged];
    const { code, out: said, err } = await merge(...args);
    expect([code, err]).toEqual([0, '']);
    expect(said).toMatch(/merged: gpt2, 25\dk parameters, adapters of 8 layers added/);
    const [beside] = await lossesOf(`--strategy single --adapter ${out}/adapter --steps 1`);
    const plain = `--model ${merged} ${DATA} --strategy single --steps 1`;
    const [inside] = (await runFlags(plain.split(' '))).steps.map(({ loss }) => loss);
    expect(Math.abs(inside! - beside!) / beside!).toBeLessThan(1e-5);
    expect((await merge(...args)).err).toMatch(/already holds a model/);
    expect((await merge(...args.with(1, out))).err).toMatch(
      /holds adapters, and not the model .* --adapter .*adapter\.\n/,
    );
    const ended = ['merge', ...args.with(5, join(out, 'ended'))];
    const interrupt = new Interrupt({ exit: () => {} });
    interrupt.ask(new SignalError('SIGINT'));
    expect((await runCli(ended, { interrupt })).code).toBe(130);
    expect(readdirSync(out).filter((name) => name.startsWith('ended'))).toEqual([]);
    // Two runs write into one directory at once. Their adapters are named after the run.
    const both = ['--model', `${ROOT}${BASE}`, '--adapter', out, '--out', join(out, 'both')];
    const [first, second] = await Promise.all([merge(...both), merge(...both)]);
    expect([first.code, second.code].sort()).toEqual([0, 2]);
    expect(first.err + second.err).toMatch(/^error: --out: .*both can't be written \(.*\)\.\n$/);
    expect(readdirSync(join(out, 'both'))).toEqual(readdirSync(merged));
    expect(readdirSync(out).filter((name) => name.includes('both'))).toEqual(['both']);
    expect((await merge(...args.with(5, out))).err).toMatch(/--out: .* is not empty/);
  });

  it('keeps the dtype of each weight of its base, unless one is asked for', async () => {
    const base = newFolder();
    const { tensors } = readSafetensors(readFileSync(`${ROOT}${BASE}/model.safetensors`));
    const state = new Map<string, HostTensor>();
    for (const [name, tensor] of tensors) {
      const dtype = name.includes('ln_') ? 'f32' : name.includes('wte') ? 'bf16' : 'f16';
      const data = fromF32Array(toF32Array(tensor.data, 'f32'), dtype);
      state.set(name, { dtype, shape: tensor.shape, data });
    }
    for await (const piece of safetensorsPieces(state)) {
      appendFileSync(join(base, 'model.safetensors'), piece);
    }
    cpSync(`${ROOT}${BASE}/config.json`, join(base, 'config.json'));
    const lora = `--model ${base} ${DATA} --strategy single --lora-rank 2 --lora-targets c_fc`;
    const out = newFolder();
    await runFlags(`${lora} --steps 2 --out ${out}`.split(' '));
    const merged = async (...flags: string[]) => {
      const to = join(newFolder(), 'merged');
      const args = ['--model', base, '--adapter', out, '--out', to, ...flags];
      expect((await merge(...args)).err).toBe('');
      const config = JSON.parse(readFileSync(join(to, 'config.json'), 'utf8'));
      const file = readSafetensors(readFileSync(join(to, 'model.safetensors')));
      return { file: file.tensors, dtype: config.torch_dtype };
    };
    const kept = await merged();
    expect(kept.dtype).toBe('float16'); // as most of them
    for (const [name, tensor] of kept.file) {
      const { dtype, data } = state.get(name)!;
      expect(tensor.dtype, name).toBe(dtype);
      expect(Buffer.compare(tensor.data, data) === 0, name).toBe(!name.includes('c_fc.weight'));
    }
    for (const [dtype, told] of [
      ['f16', 'float16'],
      ['f32', 'float32'],
    ] as const) {
      const asked = await merged('--dtype', dtype);
      expect(asked.dtype).toBe(told);
      expect(new Set([...asked.file.values()].map((tensor) => tensor.dtype))).toEqual(
        new Set([dtype]),
      );
    }
  });

  it.each([
    [['--model', 'nowhere', '--adapter', 'x', '--out', 'y'], /expected a directory with config/],
    [['--model', `${ROOT}${BASE}`, '--adapter', 'nowhere', '--out', 'y'], /nowhere can't be used/],
    [['--model', 'x'], /required option '--adapter/],
  ])('%j is refused', async (args, message) => {
    const { code, err } = await merge(...args);
    expect(code).toBe(2);
    expect(err).toMatch(message);
  });
});
