// Offload on WebGPU computes what the model computes there without offload.

import {
  generate,
  KeyValueCache,
  type Module,
  makeModel,
  nextLogits,
  resolveDecoderConfig,
  type TokenArgs,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { type Backend, Device, type Tensor } from '@shardweave/tensor-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { begin, losses } from './support/training.js';

const STEPS = 3;
const LLAMA = {
  model_type: 'llama',
  vocab_size: 31,
  hidden_size: 12,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 3,
  num_key_value_heads: 1,
  max_position_embeddings: 16,
  initializer_range: 0.4,
} as const;
const why = noWebGpu === undefined ? '' : ` (${noWebGpu})`;

describe.skipIf(noWebGpu !== undefined)(`a model on WebGPU${why}`, () => {
  let backend: Backend;
  let plain: number[] = [];
  beforeAll(async () => {
    backend = await openWebGpu();
    plain = await losses(begin({ backend }), STEPS);
  });
  afterAll(() => backend.dispose());

  it.each([true, false])('losses are equal bit for bit, checkpointing %s', async (isOn) => {
    const run = begin({ backend, offload: { checkpointActivation: isOn } });
    expect(await losses(run, STEPS)).toEqual(plain);
    run.optimizer.dispose();
    run.model.dispose();
    expect(run.device.memory().live.total).toBe(0);
  });

  it('says with a cache what it says without, on the device and at rest', async () => {
    const device = new Device(backend);
    const config = resolveDecoderConfig(LLAMA);
    const model = makeModel(device, config, { seed: 3 }).eval();
    const prompt = [7, 3, 19, 4, 11];
    const say = async (from: Module<TokenArgs, Tensor>, isHeld: boolean) => {
      const cache = isHeld ? new KeyValueCache(device, { capacity: 16 }) : undefined;
      const found: number[] = [];
      const options = { maxTokens: 11, temperature: 0 };
      for await (const token of generate(nextLogits(from, { cache }), prompt, options)) {
        found.push(token);
      }
      cache?.dispose();
      return found;
    };
    const without = await say(model, false);
    expect(await say(model, true)).toEqual(without);
    const offload = new OffloadModel<TokenArgs, Tensor>(model, { numSlices: 2 });
    expect(await say(offload, true)).toEqual(without);
    offload.dispose();
    expect(device.memory().live.total).toBe(0);
  });

  it('trains in f16, in micro-batches', async () => {
    const run = begin({ backend, offload: { computeDType: 'f16', numMicrobatches: 2 } });
    const found = await losses(run, STEPS);
    found.forEach((loss, i) => {
      expect(Math.abs(loss - plain[i]!), `step ${i}`).toBeLessThan(2e-3);
    });
  });
});
