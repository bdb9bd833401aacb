import {
  type ByteSource,
  FormatError,
  Gpt2,
  type Gpt2Config,
  type HostTensor,
  loadStateDict,
  modelConfigText,
  modelFiles,
  NnConfigError,
  openModelState,
  parseModelConfig,
  readSafetensors,
  StateDictError,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { makeDevice, read } from './support/support.js';

const CONFIG = { vocab_size: 9, n_positions: 4, n_embd: 8, n_layer: 2, n_head: 2 };

async function valuesOf(model: Gpt2): Promise<number[][]> {
  return Promise.all(model.parameters().map(read));
}

/** Returns the bytes of a model's model.safetensors. */
async function fileOf(model: Gpt2): Promise<Uint8Array> {
  const [file] = modelFiles(model.config, await stateDict(model));
  const pieces: Uint8Array[] = [];
  for await (const piece of file!.pieces()) {
    pieces.push(piece);
  }
  return new Uint8Array(Buffer.concat(pieces));
}

async function load(model: Gpt2, file: Uint8Array): Promise<void> {
  const source: ByteSource = {
    byteLength: file.byteLength,
    read: async (into, { offset }) => into.set(file.subarray(offset, offset + into.byteLength)),
  };
  const open = async (name: string) => (name === 'model.safetensors' ? source : undefined);
  await loadStateDict(model, await openModelState({ open }, model.config));
}

/** Returns the bytes of a model's file after `change` has replaced its tensors. */
async function changedFile(
  model: Gpt2,
  change: (name: string, tensor: HostTensor) => [string, HostTensor][],
): Promise<Uint8Array> {
  const { tensors } = readSafetensors(await fileOf(model));
  return writeSafetensors(new Map([...tensors].flatMap(([name, tensor]) => change(name, tensor))));
}

describe('model.safetensors', () => {
  it('holds every parameter once under its Hugging Face name, and loads back', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, CONFIG, { seed: 1 });
    const file = await fileOf(model);
    const { tensors, metadata } = readSafetensors(file);
    expect(metadata).toEqual({ format: 'pt' });
    expect([...tensors.keys()].sort()).toEqual(
      model
        .namedParameters()
        .map(([name]) => name)
        .sort(),
    );
    expect(tensors.has('lm_head.weight')).toBe(false);
    expect(tensors.get('transformer.h.1.mlp.c_fc.weight')).toMatchObject({
      dtype: 'f32',
      shape: [8, 32],
    });
    const other = new Gpt2(device, CONFIG, { seed: 2 });
    expect(await valuesOf(other)).not.toEqual(await valuesOf(model));
    await load(other, file);
    expect(await valuesOf(other)).toEqual(await valuesOf(model));
  });

  it('is read without the prefix, with masks and a head that repeats the table', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, CONFIG, { seed: 1 });
    const mask: HostTensor = { dtype: 'bool', shape: [1, 1, 2, 2], data: new Uint8Array(4) };
    const file = await changedFile(model, (name, tensor) => {
      const bare = name.replace('transformer.', '');
      if (bare === 'wte.weight') {
        return [
          [bare, tensor],
          ['lm_head.weight', tensor],
        ];
      }
      if (!bare.endsWith('c_attn.weight')) {
        return [[bare, tensor]];
      }
      const at = bare.replace('c_attn.weight', '');
      return [
        [bare, tensor],
        [`${at}bias`, mask],
        [`${at}masked_bias`, mask],
      ];
    });
    const other = new Gpt2(device, CONFIG, { seed: 2 });
    await load(other, file);
    expect(await valuesOf(other)).toEqual(await valuesOf(model));
  });

  it('is widened from 16 bits', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, CONFIG, { seed: 1 });
    const file = await changedFile(model, (name, { shape, data }) => {
      const floats = new Uint16Array(
        data.buffer.slice(data.byteOffset, data.byteOffset + data.length),
      );
      const upper = Uint16Array.from({ length: data.length / 4 }, (_, i) => floats[2 * i + 1]!);
      return [[name, { dtype: 'bf16', shape, data: new Uint8Array(upper.buffer) }]];
    });
    const [table] = await valuesOf(model);
    await load(model, file);
    const truncated = new Float32Array(
      Uint32Array.from(new Uint32Array(Float32Array.from(table!).buffer), (w) => w & 0xffff0000)
        .buffer,
    );
    expect((await valuesOf(model))[0]).toEqual([...truncated]);
  });

  it('is refused with the names that are wrong, and nothing is loaded', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, CONFIG, { seed: 1 });
    const before = await valuesOf(model);
    const source = new Gpt2(device, CONFIG, { seed: 5 });
    const file = await changedFile(source, (name, tensor) => {
      if (name === 'transformer.ln_f.bias') {
        return [['transformer.ln_f.other', tensor]];
      }
      if (name !== 'transformer.wpe.weight') {
        return [[name, tensor]];
      }
      return [[name, { ...tensor, shape: [...tensor.shape].reverse() }]];
    });
    const problem = await load(model, file).catch((error: unknown) => error);
    expect(problem).toBeInstanceOf(StateDictError);
    expect(problem).toMatchObject({
      code: 'STATE_DICT',
      missing: ['transformer.ln_f.bias'],
      unexpected: ['transformer.ln_f.other'],
      mismatched: ['transformer.wpe.weight'],
    });
    expect(await valuesOf(model)).toEqual(before);
  });

  it('a file with a head of its own is refused', async () => {
    const model = new Gpt2(makeDevice(), CONFIG);
    const file = await changedFile(model, (name, tensor) => [
      [name, tensor],
      ...(name.endsWith('wte.weight')
        ? ([['lm_head.weight', { ...tensor, data: tensor.data.map((b) => b ^ 1) }]] as [
            string,
            HostTensor,
          ][])
        : []),
    ]);
    await expect(load(model, file)).rejects.toThrow(FormatError);
  });

  it('equals the state dict', async () => {
    const model = new Gpt2(makeDevice(), CONFIG);
    const file = readSafetensors(await fileOf(model)).tensors;
    expect(new Map(file)).toEqual(await stateDict(model));
  });
});

/** What config.json files of published GPT-2s have besides sizes, the oldest fields among them. */
const PUBLISHED = {
  model_type: 'gpt2',
  architectures: ['GPT2LMHeadModel'],
  bos_token_id: 50256,
  eos_token_id: 50256,
  n_ctx: CONFIG.n_positions,
  n_special: 0,
  predict_special_tokens: true,
  num_labels: 1,
  output_past: true,
  pruned_heads: {},
  finetuning_task: null,
  summary_activation: null,
  summary_first_dropout: 0.1,
  summary_proj_to_labels: true,
  summary_type: 'cls_index',
  summary_use_proj: true,
  task_specific_params: { 'text-generation': { do_sample: true, max_length: 50 } },
  scale_attn_weights: true,
  use_cache: true,
  torch_dtype: 'float32',
  transformers_version: '4.44.0',
};

describe('config.json', () => {
  it('is read with defaults and written so that it reads back', () => {
    const config = parseModelConfig(
      JSON.stringify({ ...PUBLISHED, ...CONFIG, n_inner: null }),
    ) as Gpt2Config;
    expect(config).toMatchObject({
      ...CONFIG,
      layer_norm_epsilon: 1e-5,
      activation_function: 'gelu_new',
    });
    const text = modelConfigText({ ...config, resid_pdrop: 0.25, n_inner: 20 });
    expect(parseModelConfig(text)).toEqual({ ...config, resid_pdrop: 0.25, n_inner: 20 });
    expect(JSON.parse(text)).toMatchObject({
      model_type: 'gpt2',
      architectures: ['GPT2LMHeadModel'],
      tie_word_embeddings: true,
      n_ctx: 4,
    });
  });

  it('a config of what this model does not compute is refused', () => {
    expect(() => parseModelConfig('{')).toThrow(FormatError);
    expect(() => parseModelConfig('[]')).toThrow(FormatError);
    expect(() => parseModelConfig('{"model_type":"bert"}')).toThrow('model_type');
    for (const [name, value] of Object.entries({
      tie_word_embeddings: false,
      scale_attn_by_inverse_layer_idx: true,
      is_encoder_decoder: true,
      n_ctx: CONFIG.n_positions + 1,
      pruned_heads: { 0: [1] },
      quantization_config: { bits: 4 },
      alibi: true,
      architectures: ['GPT2ForSequenceClassification'],
    })) {
      const text = JSON.stringify({ ...PUBLISHED, ...CONFIG, [name]: value });
      expect(() => parseModelConfig(text)).toThrow(FormatError);
      expect(() => parseModelConfig(text)).toThrow(name);
    }
    expect(() => parseModelConfig('{"n_embd":"768"}')).toThrow(NnConfigError);
    expect(() => parseModelConfig('{"activation_function":"relu"}')).toThrow(NnConfigError);
  });
});
