// Models of any size on disk are read by ranges and written in pieces, and under offload are never
// whole on the device.

import { mkdir, open, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createMemoryGroup } from '@shardweave/collectives';
import {
  Gpt2,
  type Gpt2Config,
  type HostTensor,
  type LazyTensor,
  modelConfigText,
  modelFiles,
  resolveGpt2Config,
  safetensorsPieces,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { UsageError } from '../src/errors.js';
import { removeUnfinished, writeDirectory, writePieces } from '../src/files/write-file.js';
import { readModelConfig, withModelState } from '../src/model/model-directory.js';
import { trainedState } from '../src/rank/strategies/model-saves.js';
import { openStrategy } from '../src/rank/strategies/open-strategy.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT, runFlags } from './support/run-flags.js';
import { writeModel } from './support/write-model.js';

/**
 * GPT-2 xl has 6.2 GB of weights, more than Node reads at once and more than one of its arrays
 * holds.
 */
const XL = resolveGpt2Config({ n_embd: 1600, n_layer: 48, n_head: 25 });
const SMALL = resolveGpt2Config({
  vocab_size: 256,
  n_positions: 8,
  n_embd: 8,
  n_layer: 2,
  n_head: 2,
});

let directory: string;
beforeEach(async () => {
  directory = newFolder();
});

/** Writes a model directory whose weights are holes in the file, except for the last tensor. */
async function writeHoles(config: Gpt2Config, last: Uint8Array): Promise<void> {
  const device = new Device(createReferenceBackend());
  const named = new Gpt2(device, config, { deferInit: true }).namedParameters();
  const read = async () => new Uint8Array(0);
  const state = named.map(([name, { shape }]): [string, LazyTensor] => {
    return [name, { dtype: 'f32', shape, read }];
  });
  const { value: start } = await safetensorsPieces(new Map(state), {
    metadata: { format: 'pt' },
  }).next();
  const dataBytes = named.reduce((sum, [, { size }]) => sum + size * 4, 0);
  const end = start!.byteLength + dataBytes;
  const file = await open(join(directory, 'model.safetensors'), 'w');
  await file.write(start!, 0, start!.byteLength, 0);
  await file.write(last, 0, last.byteLength, end - last.byteLength);
  await file.close();
  await writeFile(join(directory, 'config.json'), modelConfigText(config));
  device.dispose();
}

describe('a model file of 6 GB', () => {
  const bias = Uint8Array.from({ length: XL.n_embd * 4 }, (_, i) => i % 251);

  it('is read by ranges, one tensor at a time', async () => {
    await writeHoles(XL, bias);
    expect(await readModelConfig(directory)).toEqual(XL);
    const read = await withModelState(directory, XL, async (state) => {
      expect(state.size).toBe(2 + 12 * XL.n_layer + 2);
      const first = await state.get('transformer.h.0.ln_1.weight')!.read();
      expect(first).toEqual(new Uint8Array(bias.byteLength));
      return state.get('transformer.ln_f.bias')!.read();
    });
    expect(read).toEqual(bias);
  });

  it('a file that is cut off is refused with its path before a tensor is read', async () => {
    await writeHoles(XL, bias);
    const path = join(directory, 'model.safetensors');
    await truncate(path, 5 * 2 ** 30);
    let isUsed = false;
    const reading = withModelState(directory, XL, async () => {
      isUsed = true;
    });
    await expect(reading).rejects.toThrow(UsageError);
    await expect(reading).rejects.toThrow(`${directory} can't be used. model.safetensors: `);
    await expect(reading).rejects.toThrow(/Is the file truncated\?/);
    expect(isUsed).toBe(false);
  });
});

describe('a model directory', () => {
  it('a directory that ends while it is read is an error that says where', async () => {
    await writeHoles(SMALL, new Uint8Array(32));
    const path = join(directory, 'model.safetensors');
    const reading = withModelState(directory, XL, async (state) => {
      await truncate(path, 2000);
      return state.get('transformer.ln_f.bias')!.read();
    });
    await expect(reading).rejects.toThrow(UsageError);
    await expect(reading).rejects.toThrow(/ended at byte/);
  });

  it('a directory whose weights are those of another config is the mistake of whoever gave it', async () => {
    await writeHoles(SMALL, new Uint8Array(32));
    await writeFile(join(directory, 'config.json'), modelConfigText({ ...SMALL, n_positions: 12 }));
    for (const flags of ['--strategy single', '--strategy offload']) {
      const run = runFlags(`${flags} --model ${directory} ${TEXT} --seq 4`.split(' '));
      await expect(run).rejects.toThrow(UsageError);
      await expect(run).rejects.toThrow(/wpe\.weight/);
    }
  });

  it('is written as the file that nn makes whole, and leaves no other', async () => {
    const device = new Device(createReferenceBackend());
    const model = new Gpt2(device, SMALL, { seed: 4 });
    await writeModel(directory, { config: SMALL, state: await stateDict(model) });
    const file = await readFile(join(directory, 'model.safetensors'));
    const state = await stateDict(model);
    const whole = writeSafetensors(state, { metadata: { format: 'pt' } });
    expect(file.equals(whole)).toBe(true);
    expect((await readdir(directory)).sort()).toEqual(['config.json', 'model.safetensors']);
    device.dispose();
  });

  it('takes the place of another whole, one of other files too, and leaves nothing of it', async () => {
    const device = new Device(createReferenceBackend());
    const path = join(directory, 'model');
    const stateOf = (seed: number) => stateDict(new Gpt2(device, SMALL, { seed }));
    const write = (state: ReadonlyMap<string, HostTensor | LazyTensor>, maxFileBytes = 1e9) =>
      writeDirectory(path, modelFiles(SMALL, state, { maxFileBytes }), { isReplacing: true });
    const table = 'transformer.wte.weight';
    const expectTable = async (seed: number, names: readonly string[]) => {
      expect((await readdir(path)).sort()).toEqual(['config.json', ...names]);
      expect(await readdir(directory)).toEqual(['model']);
      await withModelState(path, SMALL, async (read) => {
        expectBytes(await read.get(table)!.read(), (await stateOf(seed)).get(table)!.data);
      });
    };
    const shards = [1, 2].map((i) => `model-0000${i}-of-00002.safetensors`);
    const sharded = [...shards, 'model.safetensors.index.json'];
    await write(await stateOf(1));
    await expectTable(1, ['model.safetensors']);
    await write(await stateOf(2), 9000);
    await expectTable(2, sharded);
    const state = await stateOf(3);
    const [last, { dtype, shape }] = [...state].at(-1)!;
    const failing: LazyTensor = { dtype, shape, read: () => Promise.reject(new Error('EIO')) };
    const half = new Map<string, HostTensor | LazyTensor>([...state, [last, failing]]);
    await expect(write(half, 9000)).rejects.toThrow('EIO');
    await expectTable(2, sharded);
    await write(await stateOf(4));
    await expectTable(4, ['model.safetensors']);
    device.dispose();
  });

  it('a directory that a killed command had not finished has another name, and is removed by that name', async () => {
    const parts = ['model.0123456789ab.part', 'model.ba9876543210.part'];
    const others = ['model', 'model.part', 'models.0123456789ab.part', 'step-000001.part'];
    for (const name of [...parts, ...others]) {
      await mkdir(join(directory, name));
      await writeFile(join(directory, name, 'config.json'), '');
    }
    await removeUnfinished(join(directory, 'model'));
    expect((await readdir(directory)).sort()).toEqual(others);
    await removeUnfinished(join(directory, 'nowhere', 'model'));
  });

  it('a directory that could not be written to its end has no config, and its old weights', async () => {
    const path = join(directory, 'model.safetensors');
    await writeFile(path, 'old');
    const failing: LazyTensor = {
      dtype: 'f32',
      shape: [1],
      read: () => Promise.reject(new Error('ENOSPC')),
    };
    const writing = writeModel(directory, { config: SMALL, state: new Map([['a', failing]]) });
    await expect(writing).rejects.toThrow('ENOSPC');
    expect(await readdir(directory)).toEqual(['model.safetensors']);
    expect(await readFile(path, 'utf8')).toBe('old');
    const first = Uint8Array.from({ length: 300_000 }, (_, i) => i % 253);
    async function* pieces() {
      yield first;
      expect(await readdir(directory)).toContainEqual(
        expect.stringMatching(/^model.safetensors.*\.part$/),
      );
      expect(await readFile(path, 'utf8')).toBe('old');
      yield Uint8Array.of(1, 2);
    }
    await writePieces(path, pieces());
    expectBytes(await readFile(path), Buffer.concat([first, Uint8Array.of(1, 2)]));
  });

  it('a directory that two write at once is that of one of them', async () => {
    const path = join(directory, 'a');
    async function* first() {
      yield Uint8Array.of(1, 1, 1);
      await writePieces(path, [Uint8Array.of(2, 2, 2, 2, 2)]);
      yield Uint8Array.of(1, 1);
    }
    await writePieces(path, first());
    expect([...(await readFile(path))]).toEqual([1, 1, 1, 1, 1]);
    expect(await readdir(directory)).toEqual(['a']);
  });
});

const TEXT = `--device cpu --data ${ROOT}tooling/reference/data/tiny/text.txt --batch 2 --steps 1`;

/** Compares all bytes at once, because vitest compares them one by one. */
function expectBytes(actual: Uint8Array, expected: Uint8Array): void {
  expect(Buffer.from(actual).equals(expected)).toBe(true);
}

describe('sharded and offloaded', () => {
  const config = resolveGpt2Config({
    vocab_size: 256,
    n_positions: 16,
    n_embd: 64,
    n_layer: 4,
    n_head: 2,
  });

  async function writeRandom(): Promise<Map<string, Uint8Array>> {
    const device = new Device(createReferenceBackend());
    const model = new Gpt2(device, config, { seed: 9 });
    const state = await stateDict(model);
    await writeModel(directory, { config, state });
    device.dispose();
    return new Map([...state].map(([name, { data }]) => [name, data]));
  }

  it('loads a model directory without bringing it to the device', async () => {
    const written = await writeRandom();
    const flags = `--strategy offload --model ${directory} ${TEXT} --slices 2`;
    const run = await resolveConfig(parseFlags(flags.split(' '), () => {}));
    const backend = await createCpuBackend({ threads: 1 });
    const device = new Device(backend);
    const [group] = createMemoryGroup(1);
    device.ledger.resetPeak();
    const groups = { gather: group!, reduce: group! };
    const strategy = await openStrategy({ device, config: run, groups });
    // The initial values of deferred parameters are drawn in parts. Here a part is a block, and the
    // model has four blocks besides the tables.
    const whole = [...written.values()].reduce((sum, bytes) => sum + bytes.byteLength, 0);
    expect(device.ledger.peak().total).toBeLessThan(whole / 4);
    expect(device.memory().live.total).toBe(0);
    device.ledger.resetPeak();
    const state = await trainedState(strategy);
    expect([...state.keys()].sort()).toEqual([...written.keys()].sort());
    for (const [name, tensor] of state) {
      expectBytes(await tensor.read(), written.get(name)!);
    }
    expect(device.ledger.peak().total).toBe(0);
    strategy.optimizer.dispose();
    await strategy.dispose();
    await group!.close();
    device.dispose();
    await backend.dispose();
  });

  it.each(['its weights', 'random ones'])(
    'fsdp begins with %s in its shards alone: no device holds more',
    async (kind) => {
      const written = await writeRandom();
      const isRead = kind === 'its weights';
      if (!isRead) {
        await rm(join(directory, 'model.safetensors'));
      }
      const flags = `--strategy fsdp --ranks 2 --model ${directory} ${TEXT} --seed 9`;
      const run = await resolveConfig(parseFlags(flags.split(' '), () => {}));
      await Promise.all(
        createMemoryGroup(2).map(async (world) => {
          const backend = await createCpuBackend({ threads: 1 });
          const device = new Device(backend, { seed: run.seed });
          device.ledger.resetPeak();
          const groups = { gather: world, reduce: await world.split(0) };
          const strategy = await openStrategy({ device, config: run, groups });
          await strategy.initialize();
          expect(device.ledger.peak().total).toBe(strategy.shardBytes);
          const state = await trainedState(strategy);
          expect(state.size).toBe(world.rank === 0 ? written.size : 0);
          for (const [name, tensor] of state) {
            expectBytes(await tensor.read(), written.get(name)!);
          }
          strategy.optimizer.dispose();
          await strategy.dispose();
          device.dispose();
          await world.close();
          await backend.dispose();
        }),
      );
    },
  );

  it('a run at rate 0 writes the weights that it read, from host memory and from disk', async () => {
    const written = await writeRandom();
    for (const [i, rest] of ['', ` --offload-dir ${join(directory, 'rest')}`].entries()) {
      const out = join(directory, `run-${i}`);
      const flags = `--strategy offload --model ${directory} ${TEXT} --lr 0 --weight-decay 0`;
      await runFlags(`${flags}${rest} --out ${out}`.split(' '));
      await withModelState(join(out, 'model'), config, async (state) => {
        expect([...state.keys()].sort()).toEqual([...written.keys()].sort());
        for (const [name, tensor] of state) {
          expectBytes(await tensor.read(), written.get(name)!);
        }
      });
    }
  });

  it('writes the text that a whole model of the same weights writes, within its budget', async () => {
    await writeRandom();
    const flags = `--model ${directory} ${TEXT} --lr 0 --weight-decay 0`;
    const text = async (strategy: string) => {
      const run = await runFlags(`${strategy} ${flags}`.split(' '), { isQuiet: false });
      return run.text;
    };
    const whole = await text('--strategy single');
    expect(whole!.length).toBeGreaterThan(10);
    const budget = '--device-budget 1200000 --micro-batches 2 --checkpoint-activations';
    expect(await text(`--strategy offload ${budget}`)).toBe(whole);
  });
});
