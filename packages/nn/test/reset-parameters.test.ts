// Existing parameters get new initial values.

import {
  BatchNorm1d,
  Decoder,
  type DecoderOptions,
  Gpt2,
  ModuleList,
  resetParameters,
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
])(
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
