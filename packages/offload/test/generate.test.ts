// Text is generated from a model that rests off its device: slices come and go, and keys and values
// stay.

import {
  generate,
  KeyValueCache,
  type ModelConfig,
  makeModel,
  nextLogits,
  resolveDecoderConfig,
  resolveGpt2Config,
  type TokenArgs,
} from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const POSITIONS = 24;
const PROMPT = [7, 3, 19, 4, 11];
const SIZES = { vocab_size: 31, initializer_range: 0.4 };
const CONFIGS: readonly ModelConfig[] = [
  resolveDecoderConfig({
    ...SIZES,
    model_type: 'qwen3',
    hidden_size: 12,
    intermediate_size: 20,
    num_hidden_layers: 3,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 6,
    max_position_embeddings: POSITIONS,
  }),
  resolveGpt2Config({ ...SIZES, n_positions: POSITIONS, n_embd: 12, n_layer: 3, n_head: 2 }),
];

async function textOf(config: ModelConfig, offload?: OffloadOptions & { isHeld?: boolean }) {
  const { isHeld = true, ...options } = offload ?? {};
  const device = new Device(createReferenceBackend());
  const plain = makeModel(device, config, { seed: 3 });
  const model = offload === undefined ? plain : new OffloadModel<TokenArgs, Tensor>(plain, options);
  model.eval();
  const cache = isHeld ? new KeyValueCache(device, { capacity: POSITIONS }) : undefined;
  const found: number[] = [];
  const draw = { maxTokens: 30, temperature: 0.8, topK: 9, seed: 2, context: POSITIONS };
  for await (const token of generate(nextLogits(model, { cache }), PROMPT, draw)) {
    found.push(token);
  }
  cache?.dispose();
  model.dispose();
  expect(device.memory().live.total).toBe(0);
  return { found, peak: device.memory().peak.total };
}

it.each(CONFIGS.map((config) => [config.model_type, config] as const))(
  '%s says what it says on the device, in slices of any number and under a budget',
  async (_, config) => {
    const { found } = await textOf(config);
    expect(found).toHaveLength(30);
    expect((await textOf(config, { numSlices: 1, isHeld: false })).found).toEqual(found);
    const whole = await textOf(config, { numSlices: 1 });
    const cut = await textOf(config, { numSlices: 5 });
    expect(whole.found).toEqual(found);
    expect(cut.found).toEqual(found);
    expect(cut.peak).toBeLessThan(whole.peak);
    const budget = await textOf(config, { deviceBudgetBytes: 64 * 1024 });
    expect(budget.found).toEqual(found);
  },
);
