// These tests cover the encoder by itself: packed texts, refusals, initial values, adapters and
// memory. encoder-reference.test.ts compares what it computes with PyTorch.

import { piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  applyLora,
  checkpoint,
  loadCheckpoint,
  NnConfigError,
  peftConfigText,
  peftState,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import {
  Encoder,
  EncoderBlock,
  type EncoderConfig,
  type EncoderOptions,
  encoderParameterCount,
} from '@shardweave/nn/embedding';
import { createHostStore } from '@shardweave/shard-store';
import {
  type Backend,
  Device,
  mean,
  mul,
  ShapeError,
  square,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { expectClose, read, values } from './support/support.js';

const VOCAB = 23;
const WIDTH = 12;
const CONFIG: Partial<EncoderConfig> = {
  vocab_size: VOCAB,
  hidden_size: WIDTH,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 3,
  max_position_embeddings: 8,
  initializer_range: 0.3,
  hidden_dropout_prob: 0,
  attention_probs_dropout_prob: 0,
};
/** A row's rounding reaches 4e-7. What another text would add is of the size of a row. */
const ROWS = 5e-6;

const backend = await createCpuBackend({ threads: 1 });
const gpu = noWebGpu === undefined ? await openWebGpu() : undefined;
afterAll(async () => {
  await backend.dispose();
  await gpu?.dispose();
});

const ints = (device: Device, rows: readonly (readonly number[])[]) =>
  device.tensor(Int32Array.from(rows.flat()), [rows.length, rows[0]!.length]);

const text = (length: number, seed: number) =>
  Array.from({ length }, (_, i) => (i * i * 3 + i * 7 + seed * 5) % VOCAB);

const count = (length: number) => Array.from({ length }, (_, i) => i);

/** Runs forward and backward of a loss that weighs every element in its own way. */
async function backward(out: Tensor, seed: number): Promise<void> {
  const weights = out.device.tensor(values(out.size, seed), out.shape);
  await mean(mul(square(out), weights)).backward();
}

describe('texts that are packed in a row', () => {
  const texts = [text(5, 1), text(8, 2), text(3, 3)];
  const types = texts.map((each) => each.map((_, i) => (i > 2 ? 1 : 0)));

  const agreeWithThemApart = async (on: Backend) => {
    const device = new Device(on);
    const model = new Encoder(device, CONFIG, { seed: 1 });
    const weights = texts.map((each, i) => values(each.length * WIDTH, i + 1));
    /** Adds to the gradients those of a row, each element of which has a weight of its own. */
    const run = (row: readonly number[], options: EncoderOptions, weighed: readonly number[]) =>
      device.scope(async () => {
        const out = await model.call(ints(device, [row]), options);
        await sum(mul(square(out), device.tensor(weighed, out.shape))).backward();
        return read(out);
      });
    const gradients = async () => {
      const named = model.namedParameters();
      const found = await Promise.all(named.map(({ 1: { grad } }) => read(grad!)));
      model.zeroGrad();
      return new Map(named.map(([name], i) => [name, found[i]!]));
    };
    const apart: number[] = [];
    for (const [i, each] of texts.entries()) {
      const tokenTypes = ints(device, [types[i]!]);
      apart.push(...(await run(each, { tokenTypes }, weights[i]!)));
    }
    const wanted = await gradients();
    const places = {
      segments: ints(device, [texts.flatMap((each, i) => each.map(() => i + 4))]),
      positions: ints(device, [texts.flatMap((each) => count(each.length))]),
      tokenTypes: ints(device, [types.flat()]),
    };
    expectClose(await run(texts.flat(), places, weights.flat()), apart, ROWS);
    for (const [name, found] of await gradients()) {
      // A key's bias moves all scores of a query alike, so its gradient is 0 but for rounding.
      const size = name.endsWith('key.bias') ? 1 : Math.hypot(...wanted.get(name)!);
      const off = Math.hypot(...found.map((value, i) => value - wanted.get(name)![i]!));
      expect(off, name).toBeLessThanOrEqual(1e-5 * size);
    }
    model.dispose();
    device.dispose();
  };

  it('have the rows and gradients that they have apart', () => agreeWithThemApart(backend));

  it.skipIf(gpu === undefined)(
    `have them on WebGPU, too${gpu === undefined ? ` (${noWebGpu})` : ''}`,
    () => agreeWithThemApart(gpu!),
  );

  it('are hidden from padding that has a number of its own', async () => {
    const device = new Device(backend);
    const model = new Encoder(device, CONFIG, { seed: 1 });
    const short = await read(await model.call(ints(device, [text(5, 1)])));
    const padded = await model.call(ints(device, [[...text(5, 1), 0, 0, 0]]), {
      segments: ints(device, [[0, 0, 0, 0, 0, 1, 1, 1]]),
    });
    expectClose((await read(padded)).slice(0, 5 * WIDTH), short, ROWS);
  });
});

describe('an encoder', () => {
  it('gives a token a row that depends on the tokens before and after it, and on their places', async () => {
    const device = new Device(backend);
    const model = new Encoder(device, CONFIG, { seed: 1 });
    const rows = async (ids: readonly number[], options?: EncoderOptions) =>
      read(await model.call(ints(device, [ids]), options));
    const first = await rows([1, 2, 3, 4]);
    expect((await rows([1, 2, 3, 9])).slice(0, WIDTH)).not.toEqual(first.slice(0, WIDTH));
    expect((await rows([9, 2, 3, 4])).slice(-WIDTH)).not.toEqual(first.slice(-WIDTH));
    expect(await rows([1, 2, 3, 4], { positions: ints(device, [count(4)]) })).toEqual(first);
    expect(await rows([1, 2, 3, 4], { positions: ints(device, [[0, 1, 2, 5]]) })).not.toEqual(
      first,
    );
    expect(await rows([1, 2, 3, 4], { tokenTypes: ints(device, [[0, 0, 0, 0]]) })).toEqual(first);
    expect(await rows([1, 2, 3, 4], { tokenTypes: ints(device, [[0, 0, 1, 1]]) })).not.toEqual(
      first,
    );
  });

  it("gives its rows or its pooler's of the first tokens, and has no gradient of what it did not use", async () => {
    const device = new Device(backend);
    const model = new Encoder(device, { ...CONFIG, add_pooling_layer: true }, { seed: 1 });
    const bare = new Encoder(device, CONFIG, { seed: 1 });
    const ids = () => ints(device, [text(4, 1), text(4, 2)]);
    const rows = await model.call(ids());
    expect(await read(rows)).toEqual(await read(await bare.call(ids())));
    await backward(rows, 1);
    const pooler = model.namedParameters().filter(([name]) => name.startsWith('pooler.'));
    expect(pooler.map(([name, { grad }]) => [name, grad])).toEqual([
      ['pooler.dense.weight', undefined],
      ['pooler.dense.bias', undefined],
    ]);
    const pooled = await model.call(ids(), { isPooled: true });
    expect(pooled.shape).toEqual([2, WIDTH]);
    await backward(pooled, 2);
    expect(pooler.every(([, { grad }]) => grad !== undefined)).toBe(true);
  });

  it('has the same values and gradients where its blocks are checkpoints', async () => {
    const gradients = async (isCheckpointed: boolean) => {
      const device = new Device(backend);
      const model = new Encoder(device, { ...CONFIG, hidden_dropout_prob: 0.2 }, { seed: 1 });
      if (isCheckpointed) {
        for (const [name, layer] of model.children()) {
          if (layer instanceof EncoderBlock) {
            model.replaceChild(name, checkpoint(layer));
          }
        }
      }
      device.random.begin({ step: 0, rowOffset: 0 });
      await device.scope(async () => backward(await model.call(ints(device, [text(6, 1)])), 1));
      return Promise.all(model.parameters().map(({ grad }) => read(grad!)));
    };
    expect(await gradients(true)).toEqual(await gradients(false));
  });

  it('drops elements while it trains, and none in evaluation', async () => {
    const device = new Device(backend);
    const input = () => ints(device, [text(8, 1)]);
    const wanted = await read(await new Encoder(device, CONFIG, { seed: 1 }).call(input()));
    for (const field of ['hidden_dropout_prob', 'attention_probs_dropout_prob']) {
      const model = new Encoder(device, { ...CONFIG, [field]: 0.5 }, { seed: 1 });
      expect(await read(await model.call(input()))).not.toEqual(wanted);
      expectClose(await read(await model.eval().call(input())), wanted, ROWS);
    }
  });

  it('begins with normal values of its deviation, norms with ones and zeros, biases with zeros', async () => {
    const wide = { ...CONFIG, hidden_size: 48, initializer_range: 0.05 };
    const model = new Encoder(new Device(backend), { ...wide, type_vocab_size: 40 }, { seed: 4 });
    const other = new Encoder(
      new Device(backend, { seed: 8 }),
      { ...wide, type_vocab_size: 40 },
      { seed: 4 },
    );
    for (const [i, [name, parameter]] of model.namedParameters().entries()) {
      const found = await read(parameter);
      expect(await read(other.parameters()[i]!)).toEqual(found);
      if (parameter.rank === 1) {
        expect(new Set(found), name).toEqual(new Set([name.endsWith('Norm.weight') ? 1 : 0]));
      } else {
        const square = found.reduce((total, value) => total + value * value, 0) / found.length;
        expect(Math.abs(Math.sqrt(square) / 0.05 - 1), name).toBeLessThan(0.15);
      }
    }
  });

  it('goes on from a save as if it had not stopped', async () => {
    const device = new Device(backend);
    const begin = (seed: number) => {
      const model = new Encoder(device, CONFIG, { seed });
      const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
      return { model, optimizer };
    };
    const step = async ({ model, optimizer }: ReturnType<typeof begin>) => {
      await device.scope(async () => backward(await model.call(ints(device, [text(6, 1)])), 1));
      await optimizer.step();
      optimizer.zeroGrad();
      return stateDict(model);
    };
    const first = begin(1);
    await step(first);
    const store = piecesIn(createHostStore());
    await saveCheckpoint(first.model, store, { optimizer: first.optimizer });
    const second = begin(2);
    await loadCheckpoint(second.model, store, { optimizer: second.optimizer });
    expect(await step(second)).toEqual(await step(first));
  });

  it('holds no memory but its parameters after a step and none after dispose', async () => {
    const device = new Device(backend);
    const model = new Encoder(device, { ...CONFIG, hidden_dropout_prob: 0.1 });
    const { total } = device.memory().live;
    for (const _ of [1, 2]) {
      await device.scope(async () => backward(await model.call(ints(device, [text(8, 1)])), 1));
      model.zeroGrad();
      expect(device.memory().live.total).toBe(total);
    }
    model.dispose();
    expect(device.memory().live.total).toBe(0);
  });

  it('refuses rows beyond its positions unless theirs are given, and ids that are not [batch, seq]', async () => {
    const device = new Device(backend);
    const model = new Encoder(device, CONFIG);
    const long = ints(device, [text(9, 1)]);
    await expect(model.call(long)).rejects.toThrow(ShapeError);
    await expect(model.call(long)).rejects.toThrow('seq at most 8, got [1, 9]');
    const positions = ints(device, [count(9).map((i) => i % 5)]);
    expect((await model.call(long, { positions })).shape).toEqual([1, 9, WIDTH]);
    await expect(model.call(device.tensor(Int32Array.of(1, 2)))).rejects.toThrow('[batch, seq]');
  });

  it('refuses options that it does not know, a tensor in their place, and to pool without a pooler', async () => {
    const device = new Device(backend);
    const model = new Encoder(device, CONFIG);
    const ids = ints(device, [text(4, 1)]);
    const call = (options: unknown) => model.call(ids, options as EncoderOptions);
    await expect(call({ targets: ids })).rejects.toThrow("'targets'");
    await expect(call(ids)).rejects.toThrow('Write { tokenTypes }');
    await expect(call({ isPooled: true })).rejects.toThrow('add_pooling_layer');
  });

  it('refuses a configuration that cannot work, naming the field', () => {
    const make = (change: object) => () =>
      new Encoder(new Device(backend), { ...CONFIG, ...change } as Partial<EncoderConfig>);
    expect(make({ num_attention_heads: 4 })).toThrow(NnConfigError);
    expect(make({ num_attention_heads: 4 })).toThrow('num_attention_heads');
    expect(make({ model_type: 'roberta' })).toThrow('model_type');
    expect(make({ hidden_act: 'relu' })).toThrow('hidden_act');
    expect(make({ layer_norm_eps: 0 })).toThrow('layer_norm_eps');
    expect(make({ pad_token_id: -1 })).toThrow('pad_token_id');
    expect(make({ hidden_width: 3 })).toThrow('hidden_width');
  });
});

describe('adapters of an encoder', () => {
  it('stand beside all its linear layers, and have the names of PEFT', async () => {
    const model = new Encoder(new Device(backend), CONFIG, { seed: 1 });
    const config = applyLora(model, { rank: 2 });
    const parts = ['attention.self.query', 'attention.self.key', 'attention.self.value'];
    const dense = ['attention.output.dense', 'intermediate.dense', 'output.dense'];
    const layers = [0, 1].flatMap((i) =>
      [...parts, ...dense].map((at) => `encoder.layer.${i}.${at}`),
    );
    expect(config.layers).toEqual(layers);
    const fields = JSON.parse(peftConfigText(config, { taskType: 'FEATURE_EXTRACTION' }));
    expect(fields).toMatchObject({
      target_modules: ['query', 'key', 'value', 'dense'],
      task_type: 'FEATURE_EXTRACTION',
    });
    expect([...peftState(await stateDict(model)).keys()]).toEqual(
      layers.flatMap((at) => [`A`, `B`].map((of) => `base_model.model.${at}.lora_${of}.weight`)),
    );
  });
});

/** The sizes in published files config.json, and how many parameters they are published with. */
const PUBLISHED = [
  ['all-MiniLM-L6-v2', [30522, 384, 1536, 6, 12], 22_713_216],
  ['bge-small-en-v1.5', [30522, 384, 1536, 12, 12], 33_360_000],
  ['bert-base-uncased, e5-base-v2', [30522, 768, 3072, 12, 12], 109_482_240],
  ['bge-large-en-v1.5', [30522, 1024, 4096, 24, 16], 335_141_888],
] as const;

it.each(PUBLISHED)('%s has its published number of parameters', (_, sizes, published) => {
  const [vocab_size, hidden_size, intermediate_size, num_hidden_layers, heads] = sizes;
  const config = { vocab_size, hidden_size, intermediate_size, num_hidden_layers };
  const options = { ...config, num_attention_heads: heads, add_pooling_layer: true };
  const model = new Encoder(new Device(backend), options, { deferInit: true });
  expect(encoderParameterCount(model.config)).toBe(published);
  expect(model.parameters().reduce((total, { size }) => total + size, 0)).toBe(published);
  expect(model.device.memory().live.total).toBe(0);
});
