// Existing parameters get new initial values.

import {
  AddLayerNorm,
  AddRmsNorm,
  applyLora,
  BatchNorm1d,
  Conv1D,
  Decoder,
  type DecoderOptions,
  Embedding,
  Gpt2,
  LayerNorm,
  Linear,
  type Module,
  ModuleList,
  MultiheadAttention,
  ParameterInit,
  RmsNorm,
  resetParameters,
  Sequential,
  Sgd,
  stateDict,
} from '@shardweave/nn';
import { Encoder } from '@shardweave/nn/embedding';
import { type Device, mean, square } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { makeDevice, read, values } from './support/support.js';

const CONFIG = { vocab_size: 11, n_positions: 4, n_embd: 8, n_layer: 2, n_head: 2 };

/** A decoder with biases, with norms on heads, and with a head of its own. */
const DECODER: DecoderOptions = {
  ...{ model_type: 'qwen3', vocab_size: 11, hidden_size: 8, intermediate_size: 12, head_dim: 4 },
  ...{ num_hidden_layers: 2, num_attention_heads: 2, max_position_embeddings: 4 },
  attention_bias: true,
};

const ENCODER = {
  ...{ vocab_size: 11, hidden_size: 8, intermediate_size: 12, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, max_position_embeddings: 4, add_pooling_layer: true },
};

it.each([
  ['Gpt2', (device: Device) => new Gpt2(device, CONFIG, { seed: 4 })],
  ['Decoder', (device: Device) => new Decoder(device, DECODER, { seed: 4 })],
  ['Encoder', (device: Device) => new Encoder(device, ENCODER, { seed: 4 })],
  [
    'a tied Decoder with adapters',
    (device: Device) => {
      const model = new Decoder(device, { ...DECODER, tie_word_embeddings: true }, { seed: 4 });
      applyLora(model, { rank: 2, seed: 4 });
      return model;
    },
  ],
  [
    'each layer',
    (device: Device) => {
      const makers: readonly ((init: ParameterInit) => Module)[] = [
        (init) => new Linear(device, { inFeatures: 4, outFeatures: 9, init }),
        (init) => new Linear(device, { inFeatures: 4, outFeatures: 9, init }),
        (init) => new Linear(device, { inFeatures: 4, outFeatures: 9, std: 0.5, init }),
        (init) => new Conv1D(device, { inFeatures: 4, outFeatures: 9, std: 0.5, init }),
        (init) => new Embedding(device, { numEmbeddings: 5, embeddingDim: 3, std: 0.5, init }),
        (init) => new MultiheadAttention(device, { embedDim: 4, numHeads: 2, std: 0.5, init }),
        (init) => new RmsNorm(device, { normalizedShape: 4, isOffset: true, init }),
        (init) => new RmsNorm(device, { normalizedShape: 4, init }),
        (init) => new LayerNorm(device, { normalizedShape: 4, init }),
        (init) => new AddLayerNorm(device, { normalizedShape: 4, init }),
        (init) => new AddRmsNorm(device, { normalizedShape: 4, init }),
      ];
      const root = new ParameterInit(device, { seed: 4 });
      return new Sequential(
        device,
        makers.map((make, i) => make(root.at(String(i)))),
      );
    },
  ],
] as readonly (readonly [string, (device: Device) => Module])[])(
  '%s: the seed that made a model makes its values again, bit for bit, in the same tensors',
  async (_, make) => {
    const device = makeDevice();
    const model = make(device);
    const made = await stateDict(model);
    const tensors = model.parameters();
    for (const tensor of tensors) {
      device.backend.run('fill', { out: tensor.view(), value: 7 });
    }
    const live = device.memory().live.total;
    resetParameters(model, { seed: 4 });
    expect(await stateDict(model)).toEqual(made);
    resetParameters(model, { seed: 5 });
    const other = await stateDict(model);
    expect(other).not.toEqual(made);
    expect([...other.keys()]).toEqual([...made.keys()]);
    expect(model.parameters()).toEqual(tensors);
    expect(device.memory().live.total).toBe(live);
  },
);

it('every call without a seed gives other values', () => {
  const device = makeDevice();
  const model = new Gpt2(device, CONFIG);
  const table = async () => {
    resetParameters(model);
    return read(model.parameters()[0]!);
  };
  return expect(Promise.all([table(), table()]).then(([a, b]) => a![0] === b![0])).resolves.toBe(
    false,
  );
});

it('starts batch norms anew, statistics too', async () => {
  const device = makeDevice();
  const norm = new BatchNorm1d(device, { numFeatures: 3 });
  const made = await stateDict(norm);
  const optimizer = new Sgd(norm.parameters(), { lr: 1 });
  const x = device.tensor(
    values(12).map((value) => value + 2),
    [4, 3],
  );
  await mean(square(await norm.call(x))).backward();
  await optimizer.step();
  expect(await stateDict(norm)).not.toEqual(made);
  resetParameters(new ModuleList(device, [norm]));
  expect(await stateDict(norm)).toEqual(made);
});

it('layers without an init of their own begin as with one, and bounds follow the inputs', async () => {
  const device = makeDevice();
  const offset = new RmsNorm(device, { normalizedShape: 3, isOffset: true });
  expect(await read(offset.weight)).toEqual([0, 0, 0]);
  const first = new Linear(device, { inFeatures: 4, outFeatures: 400 });
  const bias = await read(first.bias!);
  expect(Math.max(...bias.map(Math.abs))).toBeLessThanOrEqual(0.5);
  expect(Math.max(...bias.map(Math.abs))).toBeGreaterThan(0.45);
  const none = new Linear(device, { inFeatures: 0, outFeatures: 3 });
  expect((await read(none.bias!)).map(Math.abs)).toEqual([0, 0, 0]);
});
