// A decoder's files are the config.json of each family, tested field by field, and weights in one
// file and in several.

import {
  Decoder,
  type DecoderConfig,
  FormatError,
  type HostTensor,
  loadStateDict,
  modelConfigText,
  modelFiles,
  openModelState,
  parseModelConfig,
  readSafetensors,
  safetensorsPieces,
  stateDict,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { filesWith, MemoryFile, MemoryFiles } from './support/memory-files.js';
import { makeDevice } from './support/support.js';

/** The config.json of SmolLM2-135M, as the Hub has it. */
const SMOL = {
  architectures: ['LlamaForCausalLM'],
  attention_bias: false,
  attention_dropout: 0.0,
  bos_token_id: 0,
  eos_token_id: 0,
  hidden_act: 'silu',
  hidden_size: 576,
  initializer_range: 0.041666666666666664,
  intermediate_size: 1536,
  is_llama_config: true,
  max_position_embeddings: 8192,
  mlp_bias: false,
  model_type: 'llama',
  num_attention_heads: 9,
  num_hidden_layers: 30,
  num_key_value_heads: 3,
  pretraining_tp: 1,
  rms_norm_eps: 1e-5,
  rope_interleaved: false,
  rope_scaling: null,
  rope_theta: 100000,
  tie_word_embeddings: true,
  torch_dtype: 'bfloat16',
  transformers_version: '4.40.1',
  'transformers.js_config': { kv_cache_dtype: { q4f16: 'float16' } },
  use_cache: true,
  vocab_size: 49152,
};
/** Those of Llama-3.2-1B-Instruct, Qwen2.5-0.5B-Instruct, Qwen3-0.6B and SmolLM3-3B. */
const REAL = [
  {
    _name_or_path: 'meta-llama/Llama-3.2-1B-Instruct',
    ...{ architectures: ['LlamaForCausalLM'], attention_bias: false, attention_dropout: 0.0 },
    ...{ bos_token_id: 128000, eos_token_id: [128001, 128008, 128009], head_dim: 64 },
    ...{ hidden_act: 'silu', hidden_size: 2048, initializer_range: 0.02, intermediate_size: 8192 },
    ...{ max_position_embeddings: 131072, mlp_bias: false, model_type: 'llama' },
    ...{ num_attention_heads: 32, num_hidden_layers: 16, num_key_value_heads: 8 },
    ...{ pretraining_tp: 1, rms_norm_eps: 1e-5, rope_theta: 500000.0, tie_word_embeddings: true },
    ...{ torch_dtype: 'bfloat16', transformers_version: '4.45.0.dev0', use_cache: true },
    ...{ vocab_size: 128256, _commit_hash: '4e20de362430cd3b72f300e6b0f18e50e7166e08' },
  },
  {
    ...{ architectures: ['Qwen2ForCausalLM'], attention_dropout: 0.0, bos_token_id: 151643 },
    ...{ eos_token_id: 151645, hidden_act: 'silu', hidden_size: 896, initializer_range: 0.02 },
    ...{ intermediate_size: 4864, max_position_embeddings: 32768, max_window_layers: 21 },
    ...{ model_type: 'qwen2', num_attention_heads: 14, num_hidden_layers: 24 },
    ...{ num_key_value_heads: 2, rms_norm_eps: 1e-6, rope_theta: 1000000.0 },
    ...{ sliding_window: 32768, tie_word_embeddings: true, torch_dtype: 'bfloat16' },
    ...{ transformers_version: '4.43.1', use_cache: true, use_sliding_window: false },
    vocab_size: 151936,
  },
  {
    ...{ architectures: ['Qwen3ForCausalLM'], attention_bias: false, attention_dropout: 0.0 },
    ...{ bos_token_id: 151643, eos_token_id: 151645, head_dim: 128, hidden_act: 'silu' },
    ...{ hidden_size: 1024, initializer_range: 0.02, intermediate_size: 3072 },
    ...{ max_position_embeddings: 40960, max_window_layers: 28, model_type: 'qwen3' },
    ...{ num_attention_heads: 16, num_hidden_layers: 28, num_key_value_heads: 8 },
    ...{ rms_norm_eps: 1e-6, rope_scaling: null, rope_theta: 1000000, sliding_window: null },
    ...{ tie_word_embeddings: true, torch_dtype: 'bfloat16', transformers_version: '4.51.0' },
    ...{ use_cache: true, use_sliding_window: false, vocab_size: 151936 },
  },
  {
    ...{ architectures: ['SmolLM3ForCausalLM'], attention_bias: false, attention_dropout: 0.0 },
    ...{ bos_token_id: 128000, eos_token_id: 128012, hidden_act: 'silu', hidden_size: 2048 },
    ...{ initializer_range: 0.02, intermediate_size: 11008, max_position_embeddings: 65536 },
    ...{ layer_types: Array.from({ length: 36 }, () => 'full_attention'), max_window_layers: 28 },
    ...{ mlp_bias: false, model_type: 'smollm3', no_rope_layer_interval: 4 },
    ...{ no_rope_layers: Array.from({ length: 36 }, (_, i) => (i % 4 === 3 ? 0 : 1)) },
    ...{ num_attention_heads: 16, num_hidden_layers: 36, num_key_value_heads: 4 },
    ...{ pad_token_id: 128004, pretraining_tp: 2, rms_norm_eps: 1e-6, rope_scaling: null },
    ...{ rope_theta: 5000000.0, sliding_window: null, torch_dtype: 'bfloat16' },
    ...{ transformers_version: '4.54.0.dev0', use_cache: false, use_sliding_window: false },
    vocab_size: 128256,
  },
];
const SCALING = {
  factor: 32.0,
  high_freq_factor: 4.0,
  low_freq_factor: 1.0,
  original_max_position_embeddings: 8192,
  rope_type: 'llama3',
};
const QWEN3 = {
  ...{ model_type: 'qwen3', vocab_size: 37, hidden_size: 8, intermediate_size: 12 },
  ...{ num_hidden_layers: 2, num_attention_heads: 3, num_key_value_heads: 1, head_dim: 4 },
  ...{
    max_position_embeddings: 16,
    hidden_act: 'silu',
    attention_bias: false,
    sliding_window: null,
  },
  ...{ use_sliding_window: false, max_window_layers: 28, tie_word_embeddings: true },
};
const parse = (fields: object) => parseModelConfig(JSON.stringify(fields)) as DecoderConfig;

describe('config.json', () => {
  it('the config of SmolLM2 is read, and written so that it reads back', () => {
    const config = parse(SMOL);
    expect(config).toMatchObject({
      ...{ model_type: 'llama', num_key_value_heads: 3, head_dim: 64, rope_theta: 100000 },
      ...{ rms_norm_eps: 1e-5, tie_word_embeddings: true, rope_scaling: null, eos_token_id: 0 },
    });
    const text = modelConfigText(config, { dtype: 'bf16' });
    expect(parseModelConfig(text)).toEqual(config);
    const { is_llama_config, pretraining_tp, rope_interleaved, use_cache, ...kept } = SMOL;
    const { transformers_version, 'transformers.js_config': js, ...told } = kept;
    expect(JSON.parse(text)).toMatchObject(told);
  });

  it.each(REAL)('a real $model_type is read, whatever later versions write beside it', (real) => {
    const config = parse(real);
    const later = {
      use_gates: false,
      gate_scale: 0,
      gated_layers: [],
      gates: {},
      _written_by: 'x',
    };
    expect(parse({ ...real, transformers_version: '9.0.0', ...later })).toEqual(config);
    for (const on of [{ use_gates: true }, { gate_scale: 0.5 }, { gated_layers: [1] }]) {
      const [name] = Object.keys(on);
      expect(() => parse({ ...real, ...on })).toThrow(`config.json: expected no ${name}, got`);
    }
  });

  it.each(['llama', 'qwen2', 'qwen3', 'smollm3'] as const)(
    'the config of a %s has the fields of its family alone',
    (family) => {
      const { attention_bias, max_window_layers, ...fields } = QWEN3;
      const config = parse({ ...fields, model_type: family });
      const written = JSON.parse(modelConfigText(config));
      expect('attention_bias' in written).toBe(family !== 'qwen2');
      expect('mlp_bias' in written).toBe(family === 'llama' || family === 'smollm3');
      expect('no_rope_layers' in written).toBe(family === 'smollm3');
      expect('use_sliding_window' in written).toBe(family !== 'llama');
      expect(parse(written)).toEqual(config);
    },
  );

  it('a SmolLM3 says which of its layers have positions, by a list or the distance of those without', () => {
    const { attention_bias, max_window_layers, ...fields } = QWEN3;
    const layersOf = (said: object) =>
      parse({ ...fields, model_type: 'smollm3', num_hidden_layers: 6, ...said }).no_rope_layers;
    expect(layersOf({})).toEqual([1, 1, 1, 0, 1, 1]);
    expect(layersOf({ no_rope_layer_interval: 3 })).toEqual([1, 1, 0, 1, 1, 0]);
    const list = [0, 1, 1, 1, 1, 0];
    expect(layersOf({ no_rope_layer_interval: 3, no_rope_layers: list })).toEqual(list);
    expect(parse({ ...fields, model_type: 'smollm3' }).tie_word_embeddings).toBe(true);
    for (const said of [{ no_rope_layers: [1, 0] }, { no_rope_layer_interval: 4 }]) {
      expect(() => parse({ ...QWEN3, ...said })).toThrow(Object.keys(said)[0]);
    }
  });

  it('is the same with rope_scaling, its older type and rope_parameters', () => {
    const { rope_type, ...factors } = SCALING;
    const { rope_theta, ...rest } = { ...SMOL, rope_theta: 500000 };
    const config = parse({ ...rest, rope_theta, rope_scaling: SCALING });
    expect(config).toMatchObject({ rope_scaling: SCALING, rope_theta: 500000 });
    expect(parse({ ...rest, rope_theta, rope_scaling: { type: rope_type, ...factors } })).toEqual(
      config,
    );
    expect(parse({ ...rest, rope_parameters: { ...SCALING, rope_theta } })).toEqual(config);
    const plain = { rope_type: 'default', rope_theta: 100000 };
    expect(parse({ ...rest, rope_parameters: plain })).toEqual(parse(SMOL));
    const { factor, ...others } = SCALING; // in another order
    const twice = { rope_scaling: { ...others, factor }, rope_parameters: SCALING };
    expect(parse({ ...rest, rope_theta, ...twice })).toEqual(config);
  });

  it.each([
    [{ rope_scaling: { rope_type: 'default' }, rope_parameters: SCALING }],
    [{ rope_scaling: SCALING, rope_parameters: { ...SCALING, factor: 8 } }],
    [{ rope_theta: 10000, rope_parameters: { ...SCALING, rope_theta: 500000 } }],
    [{ rope_scaling: { ...SCALING, type: 'linear' } }],
  ])('a config that says two things about its positions, %j, is refused', (change) => {
    expect(() => parse({ ...SMOL, ...change })).toThrow(FormatError);
    for (const name of Object.keys(change)) {
      expect(() => parse({ ...SMOL, ...change })).toThrow(name);
    }
  });

  it.each([
    [{ hidden_act: 'gelu' }, 'hidden_act'],
    [{ sliding_window: 4096 }, 'sliding_window'],
    [{ partial_rotary_factor: 0.5 }, 'partial_rotary_factor'],
    [{ rope_interleaved: true }, 'rope_interleaved'],
    [{ quantization_config: { bits: 4 } }, 'quantization_config'],
    [{ num_local_experts: 8 }, 'num_local_experts'],
    [{ rope_scaling: { rope_type: 'yarn', factor: 4 } }, 'rope_scaling.rope_type'],
    [{ rope_scaling: { type: 'linear', factor: 2 } }, 'rope_scaling.rope_type'],
    [{ rope_scaling: { ...SCALING, attention_factor: 2 } }, 'rope_scaling.attention_factor'],
    [{ rope_parameters: { rope_type: 'dynamic', factor: 2 } }, 'rope_parameters.rope_type'],
    [{ rope_scaling: 'llama3' }, 'rope_scaling'],
    [{ layer_types: ['full_attention', 'sliding_attention'] }, 'layer_types'],
    [{ is_encoder_decoder: true }, 'is_encoder_decoder'],
    [{ architectures: ['GemmaForCausalLM'] }, 'GemmaForCausalLM'],
    [{ architectures: ['LlamaForSequenceClassification'] }, 'architectures'],
    [{ architectures: ['Qwen2ForCausalLM'] }, 'architectures'],
    [{ architectures: 'LlamaForCausalLM' }, 'architectures'],
  ])('a config that asks for %j is refused by the name of the field', (change, name) => {
    expect(() => parse({ ...SMOL, ...change })).toThrow(FormatError);
    expect(() => parse({ ...SMOL, ...change })).toThrow(name);
  });

  it('takes windows of Qwen that are not in use, and refuses those that are', () => {
    const windows = { sliding_window: 32768, max_window_layers: 21 };
    const layers = { layer_types: ['full_attention', 'full_attention'] };
    expect(parse({ ...QWEN3, ...windows, ...layers })).toEqual(parse(QWEN3));
    expect(() => parse({ ...QWEN3, ...windows, use_sliding_window: true })).toThrow(
      'use_sliding_window',
    );
  });
});

const written = async (model: Decoder, options: Parameters<typeof modelFiles>[2] = {}) =>
  filesWith(modelFiles(model.config, await stateDict(model), options));

const TIED = parse(QWEN3);
const UNTIED = { ...TIED, tie_word_embeddings: false };
const bytes = (state: ReadonlyMap<string, HostTensor>) =>
  new Map([...state].map(([name, { data }]) => [name, [...data]]));

async function loaded(files: MemoryFiles, config: DecoderConfig) {
  const model = new Decoder(makeDevice(), config, { seed: 9, deferInit: true });
  await loadStateDict(model, await openModelState(files, config));
  return bytes(await stateDict(model));
}

describe('weights', () => {
  it.each([TIED, UNTIED])(
    'are one file, or shards with their index, of the lengths that they say, and load back',
    async (config) => {
      const model = new Decoder(makeDevice(), config, { seed: 3 });
      const state = await stateDict(model);
      const whole = await written(model);
      expect([...whole.keys()]).toEqual(['model.safetensors', 'config.json']);
      expect(await loaded(whole, config)).toEqual(bytes(state));

      const shards = await written(model, { maxFileBytes: 1000 });
      const names = [...shards.keys()];
      expect(names.slice(-2)).toEqual(['model.safetensors.index.json', 'config.json']);
      const count = names.length - 2;
      expect(count).toBeGreaterThan(3);
      expect(names[0]).toBe(`model-00001-of-${String(count).padStart(5, '0')}.safetensors`);
      expect(await loaded(shards, config)).toEqual(bytes(state));
      const index = JSON.parse(shards.text('model.safetensors.index.json'));
      const sizes = [...state.values()].map(({ data }) => data.byteLength);
      expect(index.metadata.total_size).toBe(sizes.reduce((sum, size) => sum + size, 0));
      expect(Object.keys(index.weight_map)).toEqual([...state.keys()]);
      for (const name of names.slice(0, -2)) {
        const { tensors, metadata } = readSafetensors(shards.get(name)!.bytes);
        expect(metadata).toEqual({ format: 'pt' });
        const data = [...tensors.values()].map((tensor) => tensor.data.byteLength);
        expect(tensors.size === 1 || data.reduce((sum, size) => sum + size, 0) <= 1000).toBe(true);
        for (const tensor of tensors.keys()) {
          expect(index.weight_map[tensor]).toBe(name);
        }
      }
    },
  );

  it('are written in bf16, rounded to nearest, and widened where they are loaded', async () => {
    const model = new Decoder(makeDevice(), TIED, { seed: 3 });
    const files = await written(model, { dtype: 'bf16' });
    expect(JSON.parse(files.text('config.json')).torch_dtype).toBe('bfloat16');
    const { tensors } = readSafetensors(files.get('model.safetensors')!.bytes);
    expect(new Set([...tensors.values()].map(({ dtype }) => dtype))).toEqual(new Set(['bf16']));
    const name = 'model.layers.1.mlp.up_proj.weight';
    const full = (await stateDict(model)).get(name)!.data;
    const found = Uint8Array.from((await loaded(files, TIED)).get(name)!);
    const floats = (data: Uint8Array) => new Float32Array(Uint8Array.from(data).buffer);
    floats(full).forEach((value, i) => {
      const off = Math.abs(floats(found)[i]! - value) / Math.abs(value);
      expect(off).toBeLessThanOrEqual(2 ** -8);
    });
    expect(floats(found)).not.toEqual(floats(full));
  });

  it('weights of f16 are widened where they are loaded, beside others', async () => {
    const model = new Decoder(makeDevice(), TIED, { seed: 3 });
    const halves = Uint16Array.of(0x3c00, 0xc000, 0x3555, 0x0001, 0x7bff, 0, 0x8000, 0x4248);
    const norm: HostTensor = { dtype: 'f16', shape: [8], data: new Uint8Array(halves.buffer) };
    const files = new MemoryFiles();
    const state = new Map([...(await stateDict(model)), ['model.norm.weight', norm]]);
    await files.write('model.safetensors', safetensorsPieces(state));
    const found = Uint8Array.from((await loaded(files, TIED)).get('model.norm.weight')!);
    expect([...new Float32Array(found.buffer)]).toEqual([
      ...[1, -2, 0.333251953125, 2 ** -24, 65504, 0, -0, 3.140625],
    ]);
  });

  it('are read by ranges: a tensor costs its own bytes', async () => {
    const model = new Decoder(makeDevice(), TIED, { seed: 3 });
    const files = await written(model, { maxFileBytes: 1000 });
    const state = await openModelState(files, TIED);
    const readBytes = () => [...files.values()].reduce((sum, file) => sum + file.bytesRead, 0);
    const before = readBytes();
    const norm = state.get('model.norm.weight')!;
    expect((await norm.read()).byteLength).toBe(32);
    expect(readBytes() - before).toBe(32);
  });

  it('may hold a tied head, equal to the table, and frequencies that older files have', async () => {
    const model = new Decoder(makeDevice(), TIED, { seed: 3 });
    const state = await stateDict(model);
    const table = state.get('model.embed_tokens.weight')!;
    const frequencies: HostTensor = { dtype: 'f32', shape: [2], data: new Uint8Array(8) };
    const files = new MemoryFiles();
    const withHead = (head: HostTensor) =>
      files.write(
        'model.safetensors',
        safetensorsPieces(
          new Map([
            ...state,
            ['lm_head.weight', head],
            ['model.layers.0.self_attn.rotary_emb.inv_freq', frequencies],
          ]),
        ),
      );
    await withHead(table);
    expect(await loaded(files, TIED)).toEqual(bytes(state));
    const other = { ...table, data: table.data.map((byte) => byte ^ 1) };
    await withHead(other);
    await expect(openModelState(files, TIED)).rejects.toThrow(FormatError);
    await expect(openModelState(files, TIED)).rejects.toThrow('lm_head.weight');
    expect((await loaded(files, UNTIED)).get('lm_head.weight')).toEqual([...other.data]);
  });

  it("may have the names of the model without its head, as an embedder's files have", async () => {
    const state = await stateDict(new Decoder(makeDevice(), TIED, { seed: 3 }));
    const files = new MemoryFiles();
    const bare = [...state].map(([name, tensor]) => [name.replace('model.', ''), tensor] as const);
    await files.write('model.safetensors', safetensorsPieces(new Map(bare)));
    expect(await loaded(files, TIED)).toEqual(bytes(state));
  });

  it('weights that are missing, or differ from their index, are refused by the name of the file', async () => {
    const model = new Decoder(makeDevice(), TIED, { seed: 3 });
    const shards = await written(model, { maxFileBytes: 1000 });
    const INDEX = 'model.safetensors.index.json';
    const [first] = shards.keys();
    const changed = async (change: (files: MemoryFiles) => unknown) => {
      const files = new MemoryFiles(shards);
      await change(files);
      return openModelState(files, TIED);
    };
    const index = (value: unknown) => (files: MemoryFiles) =>
      files.write(INDEX, [new TextEncoder().encode(JSON.stringify(value))]);
    await expect(changed((files) => files.delete(INDEX))).rejects.toThrow('got neither');
    await expect(changed((files) => files.delete(first!))).rejects.toThrow(first);
    await expect(changed(index({}))).rejects.toThrow('weight_map');
    await expect(changed(index({ weight_map: { a: '../b.safetensors' } }))).rejects.toThrow("'a'");
    await expect(changed(index({ weight_map: { a: first } }))).rejects.toThrow("'a'");
    const cut = changed((files) =>
      files.set(first!, new MemoryFile(files.get(first!)!.bytes.subarray(1))),
    );
    await expect(cut).rejects.toThrow(FormatError);
    await expect(cut).rejects.toThrow(first);
  });
});
