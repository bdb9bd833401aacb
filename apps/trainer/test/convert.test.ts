// A save becomes a model directory. Its weights equal those that the run itself writes, bit for
// bit, whichever ranks wrote the save.

import { cpSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openSave, writeSave } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import {
  type ElementRange,
  type LazyTensor,
  parseModelConfig,
  readSafetensors,
} from '@shardweave/nn';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { withModelState } from '../src/model/model-directory.js';
import { writeModelSave } from '../src/saves/model-save.js';
import type { SavedRun } from '../src/saves/saved-run.js';
import { savedState } from '../src/saves/saved-state.js';
import { runCli } from './support/run-cli.js';
import { runLine, tinyFlags, told } from './support/tiny-run.js';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const root = newFolder();
const tiny = tinyFlags(root);
let sharded: string;
const saveOf = (run: string, step: number) => join(run, `saves/step-00000${step}`);
beforeAll(async () => {
  writeFileSync(join(root, 'tokenizer.json'), '{}');
  sharded = join(root, 'sharded');
  const flags = '--strategy fsdp --ranks 2 --steps 3 --save-every 2';
  await runLine(`${tiny} ${flags} --out ${sharded}`);
});

let count = 0;
const newPath = () => join(root, `made-${++count}`);
async function convert(from: string, ...flags: string[]): Promise<string> {
  const out = newPath();
  const { code, err } = await runCli(['convert', '--from', from, '--out', out, ...flags]);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return out;
}
const fileOf = (directory: string, name: string) => readFileSync(join(directory, name));
function expectSame(made: string, own: string): void {
  expect(readdirSync(made).sort()).toEqual(readdirSync(own).sort());
  for (const name of readdirSync(own)) {
    expect(fileOf(made, name).equals(fileOf(own, name)), name).toBe(true);
  }
}

describe('convert', () => {
  it('gives the directory that a sharded run leaves, of a run or a save, byte for byte', async () => {
    expect(readdirSync(join(sharded, 'model'))).toContain('tokenizer.json');
    expectSame(await convert(sharded), join(sharded, 'model'));
    expectSame(await convert(saveOf(sharded, 3)), join(sharded, 'model'));
    const before = fileOf(await convert(saveOf(sharded, 2)), 'model.safetensors');
    expect(before.equals(fileOf(join(sharded, 'model'), 'model.safetensors'))).toBe(false);
  });

  /** Saves hold the same f32 numbers in every precision. */
  const WAYS = [
    ['single --seed 2', 'model'],
    ['fsdp --ranks 3 --precision bf16', 'model'],
    ['ddp --ranks 3 --precision bf16', 'model'],
    ['offload --slices 2 --precision bf16', 'model'],
    ['fsdp --ranks 2 --lora-rank 2 --precision bf16', 'adapter'],
  ];
  const LONG_WAYS = [
    ['single --precision fp16', 'model'],
    ['fsdp --ranks 2 --cpu-offload', 'model'],
    ['ddp --ranks 2', 'model'],
    ['offload --slices 2', 'model'],
    ['single --lora-rank 2', 'adapter'],
  ];
  it.each(isLong ? [...WAYS, ...LONG_WAYS] : WAYS)(
    'gives what a run of %s leaves',
    async (way, name) => {
      const out = newPath();
      await runLine(`${tiny} --strategy ${way} --steps 1 --save-every 1 --out ${out}`);
      expectSame(await convert(out), join(out, name));
    },
  );

  it('rounds to the nearest number of 16 bits, halves to even', async () => {
    const wide = readSafetensors(fileOf(join(sharded, 'model'), 'model.safetensors')).tensors;
    for (const [dtype, type, digits] of [
      ['bf16', 'bfloat16', 8],
      ['f16', 'float16', 11],
    ] as const) {
      const out = await convert(sharded, '--dtype', dtype);
      expect(JSON.parse(String(fileOf(out, 'config.json')))).toMatchObject({ torch_dtype: type });
      const made = readSafetensors(fileOf(out, 'model.safetensors')).tensors;
      expect([...made.keys()]).toEqual([...wide.keys()]);
      for (const [name, { data, shape }] of wide) {
        const own = made.get(name)!;
        expect([own.dtype, own.shape]).toEqual([dtype, shape]);
        const values = new Float32Array(new Uint8Array(data).buffer);
        const halves = new Uint16Array(new Uint8Array(own.data).buffer);
        const wrong = values.findIndex((value, i) => {
          return numberOf(halves[i]!, dtype) !== rounded(value, digits, dtype);
        });
        expect(wrong).toBe(-1);
      }
    }
  });

  it('says which weight f16 has no number for, in the place of an infinite one', async () => {
    const own = await openSave(pieceDirectory(saveOf(sharded, 3)));
    const weights = [...own.tensors.values()].filter(({ kind }) => kind === 'parameter');
    const store = pieceDirectory(newPath());
    await writeSave(store, {
      pieces: weights.map((spec) => ({
        ...{ ...spec, start: 0, end: spec.pieces.at(-1)!.end },
        read: async (start, end) => new Uint8Array(new Float32Array(end - start).fill(7e4).buffer),
      })),
      record: () => ({ extra: own.extra }),
    });
    const out = newPath();
    const path = store.description.replace('directory ', '');
    const args = ['convert', '--from', path, '--out', out, '--dtype'];
    const { code, err } = await runCli([...args, 'f16']);
    expect([code, err]).toEqual([
      2,
      expect.stringMatching(
        /^error: --dtype f16: 'transformer\.\S+' has numbers beyond 65504.*bf16\.\n$/,
      ),
    ]);
    expect(existsSync(out)).toBe(false);
    expect(await runCli([...args, 'bf16'])).toMatchObject({ code: 0, err: '' });
  });

  it('reads one tensor at a time, by ranges', async () => {
    const largest = 256 * 8 * 4;
    const store = pieceDirectory(saveOf(sharded, 3));
    const sizes: number[] = [];
    const read: typeof store.read = (file, into, options) => {
      sizes.push(into.byteLength);
      return store.read(file, into, options);
    };
    const save = await openSave({ ...store, read });
    const { config } = save.extra.run as SavedRun;
    sizes.length = 0;
    const state = await savedState(save, { config: config as never, dtype: 'f32' });
    expect(sizes).toEqual([]);
    for (const tensor of state.values()) {
      sizes.length = 0;
      const { byteLength } = await tensor.read();
      expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(byteLength);
      expect(byteLength).toBeLessThanOrEqual(largest);
    }
  });

  it('refuses a damaged save, takes the one before of a run, and leaves nothing behind', async () => {
    const damaged = newPath();
    cpSync(sharded, damaged, { recursive: true });
    const newest = saveOf(damaged, 3);
    const piece = readdirSync(newest).find((name) => name.endsWith('.pieces'))!;
    // After the weights comes the optimizer's state, which a model does not have.
    writeFileSync(join(newest, piece), fileOf(newest, piece).subarray(0, -1));
    expectSame(await convert(newest), join(sharded, 'model'));
    writeFileSync(join(newest, piece), fileOf(newest, piece).subarray(0, 100));
    const out = newPath();
    const { code, err } = await runCli(['convert', '--from', newest, '--out', out]);
    expect(code).toBe(1);
    expect(err).toMatch(new RegExp(`^error: --from: .*'${piece}'`));
    const interrupt = new Interrupt({ exit: () => {} });
    interrupt.ask(new SignalError('SIGINT'));
    const stopped = ['convert', '--from', sharded, '--out', out];
    expect((await runCli(stopped, { interrupt })).code).toBe(130);
    expect(readdirSync(root).filter((name) => join(root, name).startsWith(out))).toEqual([]);
    const before = await runCli(['convert', '--from', damaged, '--out', out]);
    expect(before.out).toMatch(/step-000003 can't be used: .*\n.*step-000002, step 2, f32\n$/);
    expectSame(out, await convert(saveOf(sharded, 2)));
    const again = await runCli(['convert', '--from', sharded, '--out', out]);
    expect([again.code, again.err]).toEqual([2, expect.stringMatching(/already holds a model/)]);
  });

  it.each([
    ['a model', () => join(sharded, 'model'), /holds a model, and no save\. Give .* or --to save/],
    ['nothing', () => '/nowhere', /expected a save .* or a run with saves, got \/nowhere/],
  ])('says in a sentence that %s is no save', async (_, from, expected) => {
    const { code, err } = await runCli(['convert', '--from', from(), '--out', newPath()]);
    expect(code).toBe(2);
    expect(err).toMatch(expected);
  });
});

describe('convert --to save', () => {
  const model = () => join(sharded, 'model');
  const toSave = (from: string) => convert(from, '--to', 'save');

  it('a model made a save and back is the same directory, in f32 and in 16 bits', async () => {
    const save = await toSave(model());
    expectSame(await convert(save), model());
    const narrow = await convert(sharded, '--dtype', 'bf16');
    const narrowSave = await toSave(narrow);
    expectSame(await convert(narrowSave, '--dtype', 'bf16'), narrow);
    const bytesIn = async (path: string) => {
      const { files } = await openSave(pieceDirectory(path));
      return Object.values(files).reduce((sum, bytes) => sum + bytes, 0);
    };
    expect(await bytesIn(save)).toBe(2 * (await bytesIn(narrowSave)));
    const { code, out } = await runCli(['inspect', save, '--verify']);
    expect([code, out]).toEqual([
      0,
      expect.stringMatching(
        /step +0: weights of a model.*\n.*no optimizer[\s\S]*as it was written\n$/,
      ),
    ]);
  });

  it.each(['single', 'fsdp --ranks 3', ...(isLong ? ['ddp --ranks 2', 'offload --slices 2'] : [])])(
    'is what a run of %s begins with, with the losses of --model, bit for bit',
    async (way) => {
      const save = await toSave(model());
      const flags = `--strategy ${way} --steps 2`;
      const other = `${tiny} ${flags}`;
      const begun = await runLine(`${other} --resume ${save}`);
      expect(begun.resumed).toMatchObject({ step: 0, path: save, notes: [] });
      const own = await runLine(
        `${tiny.replace(`--model ${root}`, `--model ${model()}`)} ${flags}`,
      );
      expect(told(begun)).toEqual(told(own));
      expect(told(begun)).not.toEqual(told(await runLine(other)));
    },
  );

  it('is read by ranges, and refuses weights of another model', async () => {
    const config = parseModelConfig(String(fileOf(model(), 'config.json')));
    await withModelState(model(), config, async (state) => {
      const byRanges = new Map<string, LazyTensor>(
        [...state].map(([name, tensor]) => {
          const read = () => Promise.reject(new Error(`${name} is read as a whole`));
          return [name, { ...tensor, readPart: tensor.readPart!.bind(tensor), read }];
        }),
      );
      const options = {
        config: {
          model: { kind: 'directory', path: model(), hasWeights: true },
          modelConfig: config,
          tokenizer: 'byte',
        },
        signal: new AbortController().signal,
      } as const;
      const write = (weights: typeof byRanges) =>
        writeModelSave(pieceDirectory(newPath()), weights, options);
      await write(byRanges);
      const [name, tensor] = [...byRanges][0]!;
      await expect(write(new Map(byRanges).set(name, { ...tensor, shape: [1] }))).rejects.toThrow(
        `expected '${name}' of f32, f16 or bf16 [${tensor.shape.join(', ')}], got f32 [1].`,
      );
      byRanges.delete(name);
      await expect(write(byRanges)).rejects.toThrow(/, got none\.$/);
    });
  });

  it('reads a tensor of more than a block where each piece of it is', async () => {
    const config = parseModelConfig(String(fileOf(model(), 'config.json')));
    const vocabulary = 140_000; // Width 8 makes 4.3 MiB of f32, and a save reads 4 MiB at once.
    const tall = { ...config, vocab_size: vocabulary };
    const values = Float32Array.from({ length: vocabulary * 8 }, (_, i) => i);
    const store = pieceDirectory(newPath());
    await withModelState(model(), config, async (state) => {
      const [name] = [...state].find(([, { shape }]) => shape[0] === config.vocab_size)!;
      const read = async () => new Uint8Array(values.buffer);
      const readPart = async ({ first, count }: ElementRange) =>
        new Uint8Array(values.slice(first, first + count).buffer);
      for (const each of [{ read }, { read, readPart }]) {
        const tensor = { dtype: 'f32', shape: [vocabulary, 8], ...each } as const;
        await writeModelSave(store, new Map(state).set(name, tensor), {
          config: { model: { kind: 'preset', name: 'nano' }, modelConfig: tall, tokenizer: 'byte' },
          signal: new AbortController().signal,
        });
        const save = await openSave(store);
        const found = new Float32Array(values.length);
        const spec = { ...save.tensors.get(JSON.stringify([name]))!, start: 0, end: values.length };
        expect(save.tensors.get(JSON.stringify([name]))!.pieces.length).toBeGreaterThan(1);
        const write = (start: number, bytes: Uint8Array) =>
          new Uint8Array(found.buffer).set(bytes, start * 4);
        await save.fill([{ ...spec, write }]);
        expect(Buffer.compare(Buffer.from(found.buffer), Buffer.from(values.buffer))).toBe(0);
      }
    });
  });

  it.each([
    ['a save', () => saveOf(sharded, 3), '', /is a save already\. Leave --to save out/],
    [
      'no weights',
      () => root,
      '',
      /expected a directory with config\.json and weights, or a GGUF file, got/,
    ],
    ['a dtype', model, ' --dtype bf16', /--dtype: a save has the weights of its model\. Leave it/],
  ])('refuses %s in a sentence', async (_, from, more, expected) => {
    const line = `convert --to save --from ${from()} --out ${newPath()}${more}`;
    const { code, err } = await runCli(line.split(' '));
    expect([code, err]).toEqual([2, expect.stringMatching(expected)]);
  });
});

/**
 * Rounds `value` to this many binary digits; of two equally near numbers the even one is taken.
 * Subnormals of f16 are coarser.
 */
function rounded(value: number, digits: number, dtype: 'bf16' | 'f16'): number {
  const exponent = Math.max(Math.floor(Math.log2(Math.abs(value))), dtype === 'f16' ? -14 : -126);
  const unit = 2 ** (exponent - digits + 1);
  const below = Math.floor(value / unit);
  const rest = value / unit - below;
  const isUp = rest > 0.5 || (rest === 0.5 && below % 2 !== 0);
  return value === 0 ? 0 : (below + (isUp ? 1 : 0)) * unit;
}

function numberOf(bits: number, dtype: 'bf16' | 'f16'): number {
  const [width, bias] = dtype === 'bf16' ? [7, 127] : [10, 15];
  const fraction = bits & (2 ** width - 1);
  const exponent = (bits & 0x7fff) >> width;
  const size =
    exponent === 0
      ? fraction * 2 ** (1 - bias - width)
      : (1 + fraction / 2 ** width) * 2 ** (exponent - bias);
  return bits >= 0x8000 ? -size : size;
}
