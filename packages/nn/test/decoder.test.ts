// These tests cover the decoder by itself: packed rows, kernel calls, refusals, initial values and
// memory. decoder-reference.test.ts compares what it computes with PyTorch.

import { bf16ToF32, f32ToBf16 } from '@shardweave/dtypes';
import {
  Decoder,
  type DecoderOptions,
  NnConfigError,
  parameterCount,
  resolveDecoderConfig,
} from '@shardweave/nn';
import { Device, mean, ShapeError, sum, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { makeDevice, read } from './support/support.js';

const VOCAB = 23;
const LLAMA: DecoderOptions = {
  model_type: 'llama',
  vocab_size: VOCAB,
  hidden_size: 12,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 3,
  num_key_value_heads: 1,
  max_position_embeddings: 16,
  initializer_range: 0.2,
};
const QWEN2: DecoderOptions = { ...LLAMA, model_type: 'qwen2', tie_word_embeddings: true };
const QWEN3: DecoderOptions = { ...LLAMA, model_type: 'qwen3', head_dim: 6 };
const SMOLLM3: DecoderOptions = { ...LLAMA, model_type: 'smollm3', no_rope_layers: [1, 0, 0] };
const GEMMA3: DecoderOptions = {
  ...LLAMA,
  ...{ model_type: 'gemma3_text', head_dim: 6, sliding_window: 3 },
  layer_types: ['full_attention', 'sliding_attention', 'sliding_attention'],
};
const FAMILIES = [LLAMA, QWEN2, QWEN3, SMOLLM3, GEMMA3].map(
  (config) => [config.model_type, config] as const,
);
/**
 * Forward and backward of a Llama block take 39 kernel calls, and a few more with biases or further
 * norms. Composed of plain ops they would take three times as many.
 */
const MOST_CALLS = 46;

/**
 * The sums of keys' gradients cancel, so that rounding reaches 1.4e-6 of their size. A leak between
 * documents would be a tenth of it.
 */
const GRADIENTS = 1e-5;

const backend = await createCpuBackend({ threads: 1 });
afterAll(() => backend.dispose());

const ids = (device: Device, values: readonly number[], rows = 1) =>
  device.tensor(Int32Array.from(values), [rows, values.length / rows]);

const text = (length: number, seed: number) =>
  Array.from({ length }, (_, i) => (i * i * 3 + i * 7 + seed * 5) % VOCAB);

describe.each(FAMILIES)('%s', (_, config) => {
  it('has the losses and gradients of its documents apart when they are packed in rows', async () => {
    const device = new Device(backend);
    const model = new Decoder(device, config, { seed: 1 });
    const documents = [text(5, 1), text(7, 2), text(4, 3)];
    const targetsOf = (document: readonly number[]) => [...document.slice(1), -100];
    const gradients = async (forward: () => Promise<Tensor[]>) => {
      const losses = await device.scope(async () => {
        const parts = await forward();
        for (const part of parts) {
          await sum(part).backward();
        }
        return (await Promise.all(parts.map(read))).flat();
      });
      const named = model.namedParameters();
      const values = await Promise.all(
        named.map(async ([name, { grad }]) => [name, await read(grad!)]),
      );
      model.zeroGrad();
      return { losses, gradients: new Map(values as [string, number[]][]) };
    };
    const apart = await gradients(async () => {
      const losses: Tensor[] = [];
      for (const document of documents) {
        const targets = ids(device, targetsOf(document));
        losses.push(await model.call(ids(device, document), { targets }));
      }
      return losses;
    });
    const packed = await gradients(async () => {
      const flat = (of: (document: readonly number[], index: number) => readonly number[]) =>
        ids(device, documents.flatMap(of));
      const losses = await model.call(
        flat((document) => document),
        {
          targets: flat(targetsOf),
          segments: flat((document, index) => document.map(() => index + 4)),
          positions: flat((document) => document.map((_, i) => i)),
        },
      );
      return [losses];
    });
    expect(packed.losses).toHaveLength(16);
    packed.losses.forEach((loss, i) => {
      expect(Math.abs(loss - apart.losses[i]!)).toBeLessThanOrEqual(1e-6 * Math.max(1, loss));
    });
    expect(packed.losses.filter((loss) => loss === 0)).toHaveLength(documents.length);
    for (const [name, values] of packed.gradients) {
      const wanted = apart.gradients.get(name)!;
      const off = Math.hypot(...values.map((value, i) => value - wanted[i]!));
      expect(off, name).toBeLessThanOrEqual(GRADIENTS * Math.hypot(...wanted));
    }
    model.dispose();
    device.dispose();
  });

  it(`calls at most ${MOST_CALLS} kernels for a block, forward and backward`, async () => {
    const callsWith = async (layers: number) => {
      const device = new Device(backend);
      const model = new Decoder(device, { ...config, num_hidden_layers: layers });
      const before = device.backend.dispatches;
      await device.scope(async () => {
        const options = { targets: ids(device, text(16, 2), 2) };
        await mean(await model.call(ids(device, text(16, 1), 2), options)).backward();
      });
      const calls = device.backend.dispatches - before;
      model.dispose();
      device.dispose();
      return calls;
    };
    const calls = (await callsWith(3)) - (await callsWith(2));
    expect(calls).toBeGreaterThan(20);
    expect(calls).toBeLessThanOrEqual(MOST_CALLS);
  });

  it('gives logits that depend on earlier tokens alone, and on their places', async () => {
    const device = makeDevice();
    const model = new Decoder(device, config, { seed: 1 });
    const logits = async (values: readonly number[], positions?: readonly number[]) => {
      const places = positions && { positions: ids(device, positions) };
      return read(await model.call(ids(device, values), places));
    };
    const first = await logits([1, 2, 3, 4]);
    const changed = await logits([1, 2, 9, 4]);
    expect(changed.slice(0, 2 * VOCAB)).toEqual(first.slice(0, 2 * VOCAB));
    expect(changed.slice(3 * VOCAB)).not.toEqual(first.slice(3 * VOCAB));
    // Attention depends on distances only, so shifting all positions by the same number changes
    // nothing.
    const moved = await logits([1, 2, 3, 4], [7, 8, 9, 10]);
    moved.forEach((value, i) => {
      expect(Math.abs(value - first[i]!)).toBeLessThan(1e-5);
    });
    expect(await logits([1, 2, 3, 4], [0, 1, 2, 5])).not.toEqual(first);
  });

  it('has as many parameters as its formula says, with a head of its own or a tied one', () => {
    for (const tied of [true, false]) {
      for (const biases of config.model_type === 'llama' ? [true, false] : [false]) {
        const bias = { attention_bias: biases, mlp_bias: biases };
        const options = { ...config, ...bias, tie_word_embeddings: tied };
        const model = new Decoder(makeDevice(), options, { deferInit: true });
        const sizes = model.parameters().reduce((total, { size }) => total + size, 0);
        expect(parameterCount(model.config)).toBe(sizes);
        const names = model.namedParameters().map(([name]) => name);
        expect(names.includes('lm_head.weight')).toBe(!tied);
      }
    }
  });

  it('begins with the same values whatever its device has drawn, normal ones of its deviation', async () => {
    const device = makeDevice();
    device.random.nextKey();
    const wide = { ...config, hidden_size: 48, initializer_range: 0.05 };
    const model = new Decoder(device, wide, { seed: 4 });
    const other = new Decoder(makeDevice({ seed: 8 }), wide, { seed: 4 });
    for (const [i, [name, parameter]] of model.namedParameters().entries()) {
      const values = await read(parameter);
      expect(await read(other.parameters()[i]!)).toEqual(values);
      if (parameter.rank === 1) {
        const isOne = name.includes('norm') && config.model_type !== 'gemma3_text';
        expect(new Set(values)).toEqual(new Set([isOne ? 1 : 0]));
      } else {
        const square = values.reduce((total, value) => total + value * value, 0) / values.length;
        expect(Math.abs(Math.sqrt(square) / 0.05 - 1), name).toBeLessThan(0.1);
      }
    }
  });

  it('holds no memory but its parameters after a step and none after dispose', async () => {
    const device = makeDevice();
    const model = new Decoder(device, { ...config, attention_dropout: 0.1 });
    const { total } = device.memory().live;
    for (const _ of [1, 2]) {
      await device.scope(async () => {
        const options = { targets: ids(device, text(8, 2), 2) };
        await mean(await model.call(ids(device, text(8, 1), 2), options)).backward();
      });
      model.zeroGrad();
      expect(device.memory().live.total).toBe(total);
    }
    model.dispose();
    expect(device.memory().live.total).toBe(0);
  });
});

/**
 * The sizes in published files config.json, with the number of parameters that each model is
 * published with.
 */
const PUBLISHED = [
  ['llama', 'Llama-2-7b', [32000, 4096, 11008, 32, 32, 32, 128], false, 6_738_415_616],
  ['llama', 'TinyLlama-1.1B', [32000, 2048, 5632, 22, 32, 4, 64], false, 1_100_048_384],
  ['llama', 'Llama-3.2-1B', [128256, 2048, 8192, 16, 32, 8, 64], true, 1_235_814_400],
  ['llama', 'SmolLM2-135M', [49152, 576, 1536, 30, 9, 3, 64], true, 134_515_008],
  ['qwen2', 'Qwen2.5-0.5B', [151936, 896, 4864, 24, 14, 2, 64], true, 494_032_768],
  ['qwen3', 'Qwen3-0.6B', [151936, 1024, 3072, 28, 16, 8, 128], true, 596_049_920],
  ['smollm3', 'SmolLM3-3B', [128256, 2048, 11008, 36, 16, 4, 128], true, 3_075_098_624],
  ['gemma3_text', 'Gemma-3-270M', [262144, 640, 2048, 18, 4, 1, 256], true, 268_098_176],
  ['gemma3_text', 'Gemma-3-1B', [262144, 1152, 6912, 26, 4, 1, 256], true, 999_885_952],
] as const;

describe('a decoder', () => {
  it.each(PUBLISHED)(
    '%s: %s has its published number of parameters',
    (family, _, sizes, tied, count) => {
      const [vocab, width, inner, layers, heads, kvHeads, headDim] = sizes;
      const config: DecoderOptions = {
        ...{ model_type: family, vocab_size: vocab, hidden_size: width, intermediate_size: inner },
        ...{ num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: kvHeads },
        ...{ head_dim: headDim, max_position_embeddings: 2048, tie_word_embeddings: tied },
      };
      const model = new Decoder(makeDevice(), config, { deferInit: true });
      expect(parameterCount(model.config)).toBe(count);
      expect(model.parameters().reduce((total, { size }) => total + size, 0)).toBe(count);
      expect(model.device.memory().live.total).toBe(0);
    },
  );

  it('multiplies the rows of a Gemma by the root of its width, as their dtype has it', async () => {
    const device = makeDevice();
    const model = new Decoder(device, GEMMA3, { seed: 1 }).to('bf16');
    const rows = await model.layers()[0]!.call(ids(device, [5]));
    const table = await read(model.parameters()[0]!);
    const inBf16 = (value: number) => bf16ToF32(f32ToBf16(value));
    const expected = table.slice(5 * 12, 6 * 12).map((value) => inBf16(value * 3.46875));
    expect(await read(rows as Tensor)).toEqual(expected); // the root of 12 is 3.4641
  });

  it('drops attention weights while it trains, and none in evaluation', async () => {
    const device = makeDevice();
    const model = new Decoder(device, { ...LLAMA, attention_dropout: 0.5 }, { seed: 1 });
    const plain = new Decoder(device, LLAMA, { seed: 1 });
    const input = ids(device, text(8, 1));
    const wanted = await read(await plain.call(input));
    expect(await read(await model.call(input))).not.toEqual(wanted);
    expect(await read(await model.eval().call(input))).toEqual(wanted);
  });

  it('refuses rows beyond its positions unless theirs are given, and ids that are not [batch, seq]', async () => {
    const device = makeDevice();
    const model = new Decoder(device, LLAMA);
    const long = ids(device, text(17, 1));
    await expect(model.call(long)).rejects.toThrow(ShapeError);
    const positions = ids(
      device,
      Array.from({ length: 17 }, (_, i) => i % 9),
    );
    expect((await model.call(long, { positions })).shape).toEqual([1, 17, VOCAB]);
    const flat = device.tensor(Int32Array.of(1, 2));
    await expect(model.call(flat)).rejects.toThrow('[batch, seq]');
  });

  it.each([
    ['llama', LLAMA.hidden_size / LLAMA.num_attention_heads],
    ['qwen2', LLAMA.hidden_size / LLAMA.num_attention_heads],
    ['qwen3', 128],
  ] as const)('%s has heads of %d columns, unless it says how many', (model_type, width) => {
    const { head_dim: _, ...config } = LLAMA;
    expect(resolveDecoderConfig({ ...config, model_type }).head_dim).toBe(width);
    expect(resolveDecoderConfig({ ...config, model_type, head_dim: 2 }).head_dim).toBe(2);
  });

  it('refuses a configuration that cannot work, naming the field', () => {
    const make = (change: object) => () =>
      new Decoder(makeDevice(), { ...LLAMA, ...change } as DecoderOptions);
    expect(make({ num_key_value_heads: 2 })).toThrow(NnConfigError);
    expect(make({ num_key_value_heads: 2 })).toThrow('num_key_value_heads');
    expect(make({ num_attention_heads: 4 })).toThrow('head_dim');
    expect(make({ head_dim: 5 })).toThrow('head_dim');
    expect(make({ model_type: 'mistral' })).toThrow('model_type');
    expect(make({ model_type: 'qwen2', attention_bias: true })).toThrow('attention_bias');
    expect(make({ model_type: 'qwen3', mlp_bias: true })).toThrow('mlp_bias');
    expect(make({ no_rope_layers: [1, 0] })).toThrow('no no_rope_layers for llama, got [1,0]');
    const ofSmol = (...layers: number[]) => make({ ...SMOLLM3, no_rope_layers: layers });
    expect(ofSmol(1)).toThrow('no_rope_layers for each of num_hidden_layers (2), got 1');
    expect(ofSmol(1, 2)).toThrow('no_rope_layers to be a list of 0 or 1 for each layer');
    expect(make({ ...GEMMA3, layer_types: ['chunked'] })).toThrow('layer_types to be a list of');
    expect(make({ ...GEMMA3, sliding_window: 0 })).toThrow('sliding_window');
    expect(make({ sliding_window: 4 })).toThrow(
      'no sliding_window for llama, got 4. Only gemma3_text',
    );
    const linear = { rope_type: 'linear', factor: 8 };
    expect(make({ rope_scaling: linear })).toThrow("of rope_type 'llama3' for llama, got 'linear'");
    expect(make({ ...GEMMA3, rope_scaling: { ...linear, beta: 1 } })).toThrow('rope_scaling');
    expect(make({ hidden_size: undefined })).toThrow('hidden_size');
    expect(make({ rope_theta: 0 })).toThrow('rope_theta');
    expect(make({ rope_scaling: { rope_type: 'llama3', factor: 8 } })).toThrow('rope_scaling');
    expect(make({ eos_token_id: [1, -2] })).toThrow('eos_token_id');
    expect(make({ hidden_width: 3 })).toThrow('hidden_width');
  });
});
