// The config.json of Gemma 3, which versions of transformers have written in three ways.

import {
  type DecoderConfig,
  FormatError,
  modelConfigText,
  NnError,
  parseModelConfig,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';

const layers = (count: number) =>
  Array.from({ length: count }, (_, i) => (i % 6 === 5 ? 'full_attention' : 'sliding_attention'));

/** That of gemma-3-270m-it, as the Hub has it. */
const SMALL = {
  _sliding_window_pattern: 6,
  ...{ architectures: ['Gemma3ForCausalLM'], attention_bias: false, attention_dropout: 0.0 },
  ...{ attn_logit_softcapping: null, bos_token_id: 2, eos_token_id: 1 },
  ...{ final_logit_softcapping: null, head_dim: 256, hidden_activation: 'gelu_pytorch_tanh' },
  ...{ hidden_size: 640, initializer_range: 0.02, intermediate_size: 2048 },
  ...{ layer_types: layers(18), max_position_embeddings: 32768, model_type: 'gemma3_text' },
  ...{ num_attention_heads: 4, num_hidden_layers: 18, num_key_value_heads: 1, pad_token_id: 0 },
  ...{ query_pre_attn_scalar: 256, rms_norm_eps: 1e-6, rope_local_base_freq: 10000.0 },
  ...{ rope_scaling: null, rope_theta: 1000000.0, sliding_window: 512 },
  ...{ torch_dtype: 'bfloat16', transformers_version: '4.55.0.dev0' },
  ...{ use_bidirectional_attention: false, use_cache: true, vocab_size: 262144 },
};
const parse = (fields: object) => parseModelConfig(JSON.stringify(fields)) as DecoderConfig;

const { rope_theta, rope_local_base_freq, rope_scaling, ...REST } = SMALL;
const newer = (full: object, sliding: object | null = { rope_theta: 10000 }) => ({
  ...REST,
  rope_parameters: {
    full_attention: { rope_type: 'default', rope_theta: 1000000, ...full },
    ...(sliding && { sliding_attention: { rope_type: 'default', ...sliding } }),
  },
});

describe('the config of a Gemma 3', () => {
  it('is read, and written so that it reads back', () => {
    const config = parse(SMALL);
    expect(config).toMatchObject({
      ...{ layer_types: layers(18), sliding_window: 512, query_pre_attn_scalar: 256 },
      ...{ rope_theta: 1e6, rope_local_base_freq: 1e4, tie_word_embeddings: true },
    });
    const text = modelConfigText(config, { dtype: 'bf16' });
    expect(parseModelConfig(text)).toEqual(config);
    const written = JSON.parse(text);
    const { use_cache, transformers_version, _sliding_window_pattern, ...told } = SMALL;
    const { attn_logit_softcapping, final_logit_softcapping, ...kept } = told;
    const { use_bidirectional_attention, ...fields } = kept;
    expect(written).toMatchObject(fields);
    for (const name of ['hidden_act', 'mlp_bias', 'use_sliding_window', 'no_rope_layers']) {
      expect(written, name).not.toHaveProperty(name);
    }
  });

  it('has the defaults of its class', () => {
    const { vocab_size, hidden_size, intermediate_size, num_attention_heads } = SMALL;
    const { num_hidden_layers, model_type, max_position_embeddings } = SMALL;
    const sizes = { vocab_size, hidden_size, intermediate_size, num_attention_heads };
    const least = { ...sizes, num_hidden_layers, model_type, max_position_embeddings };
    expect(parse(least)).toMatchObject({
      ...{ num_key_value_heads: 4, head_dim: 256, query_pre_attn_scalar: 256 },
      ...{ rope_theta: 1e6, rope_local_base_freq: 1e4, sliding_window: 4096 },
      ...{ layer_types: layers(18), tie_word_embeddings: true, rms_norm_eps: 1e-6 },
    });
  });

  it('is the same by a pattern, and by rope_parameters for each kind of layers', () => {
    const config = parse(SMALL);
    const { layer_types, _sliding_window_pattern, ...fields } = SMALL;
    const hybrid = { cache_implementation: 'hybrid' };
    expect(parse({ ...fields, ...hybrid, sliding_window_pattern: 6 })).toEqual(config);
    const thirds = layers(18).map((_, i) => (i % 3 === 2 ? 'full_attention' : 'sliding_attention'));
    for (const name of ['sliding_window_pattern', '_sliding_window_pattern']) {
      expect(parse({ ...fields, [name]: 3 }).layer_types).toEqual(thirds);
      expect(parse({ ...SMALL, [name]: 3 }).layer_types).toEqual(layers(18));
    }
    expect(parse(newer({}))).toEqual(config);
    expect(parse(newer({}, { rope_theta: 500 })).rope_local_base_freq).toBe(500);
    const scaling = { rope_type: 'linear', factor: 8 };
    const stretched = parse({ ...SMALL, rope_scaling: scaling });
    expect(stretched.rope_scaling).toEqual(scaling);
    expect(parse(newer(scaling))).toEqual(stretched);
    expect(parseModelConfig(modelConfigText(stretched))).toEqual(stretched);
  });

  it.each([
    [{ hidden_activation: 'gelu' }, 'hidden_activation'],
    [{ hidden_act: 'silu' }, 'hidden_act'],
    [{ final_logit_softcapping: 30 }, 'final_logit_softcapping'],
    [{ attn_logit_softcapping: 50 }, 'attn_logit_softcapping'],
    [{ use_bidirectional_attention: true }, 'use_bidirectional_attention'],
    [{ architectures: ['Gemma3ForConditionalGeneration'] }, 'architectures'],
    [{ rope_scaling: { rope_type: 'yarn', factor: 8 } }, "to be 'default' or 'linear'"],
    [newer({ beta: 1 }), 'rope_parameters.full_attention.beta'],
    [newer({}, { rope_type: 'linear', factor: 8 }), 'rope_parameters.sliding_attention.rope_type'],
    [newer({}, null), 'rope_parameters.sliding_attention'],
    [{ rope_local_base_freq: 500, ...newer({}) }, 'rope_local_base_freq'],
    [{ rope_parameters: { full_attention: {}, chunked: {} } }, 'rope_parameters.chunked'],
    [{ layer_types: ['full_attention', 'chunked_attention'] }, 'layer_types'],
    [{ layer_types: ['full_attention'] }, 'layer_types'],
  ])('one that asks for %j is refused by the name of the field', (change, name) => {
    expect(() => parse({ ...SMALL, ...change })).toThrow(NnError);
    expect(() => parse({ ...SMALL, ...change })).toThrow(name);
  });

  it('is none where the model has images, or is a Gemma 2', () => {
    for (const model_type of ['gemma3', 'gemma2']) {
      expect(() => parse({ ...SMALL, model_type })).toThrow(FormatError);
    }
  });
});
