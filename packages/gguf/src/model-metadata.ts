// What a GGUF file says of its model: the keys that llama.cpp reads, from the fields of
// config.json.

import type { DecoderConfig, Gpt2Config, ModelConfig } from '@shardweave/nn';
import type { EncoderConfig, Pooling } from '@shardweave/nn/embedding';
import { GgufModelError } from './errors.js';
import { GGUF_FAMILIES } from './families.js';
import { FILE_TYPES, type GgufType } from './file-types.js';
import type { MetadataValue } from './gguf-file.js';

/** The version of the layout of quantized blocks. */
const QUANTIZATION_VERSION = 2;

/**
 * The keys of `general` and of the architecture.
 * @throws {GgufModelError} for what llama.cpp's model of that name does not compute
 */
export function modelMetadata(
  config: ModelConfig | EncoderConfig,
  options: {
    readonly name: string;
    readonly type: GgufType;
    /** How rows of tokens become one; none of a model that is no embedder. */
    readonly pooling?: Pooling | undefined;
  },
): Map<string, MetadataValue> {
  const { name, type, pooling } = options;
  const architecture =
    config.model_type === 'bert' ? 'bert' : GGUF_FAMILIES[config.model_type].architecture;
  const isEmbedder = pooling !== undefined || config.model_type === 'bert';
  const values = {
    ...valuesOf(config),
    ...(isEmbedder && { pooling_type: count(pooling === undefined ? 0 : POOLING_TYPES[pooling]) }),
  };
  const own = Object.entries(values).map(
    ([key, value]) => [`${architecture}.${key}`, value] as const,
  );
  const ownTokenizer: [string, MetadataValue][] =
    config.model_type === 'bert'
      ? [['tokenizer.ggml.token_type_count', count(config.type_vocab_size)]]
      : [];
  return new Map([...general('model', { architecture, name, type }), ...own, ...ownTokenizer]);
}

/** llama.cpp's numbers for the ways to pool. 0 is none. */
export const POOLING_TYPES: Readonly<Record<Pooling, number>> = { mean: 1, cls: 2, last: 3 };

function valuesOf(config: ModelConfig | EncoderConfig): Values {
  if (config.model_type === 'bert') {
    return encoderValues(config);
  }
  requireComputed(config);
  return config.model_type === 'gpt2' ? gpt2Values(config) : decoderValues(config);
}

/**
 * The keys of an adapter file. llama.cpp multiplies the product of its factors by alpha / rank.
 * @throws {GgufModelError} for a base that llama.cpp's model of that name does not compute
 */
export function adapterMetadata(
  base: ModelConfig,
  options: { readonly name: string; readonly type: GgufType; readonly alpha: number },
): Map<string, MetadataValue> {
  const { alpha, ...rest } = options;
  requireComputed(base);
  return new Map([
    ...general('adapter', { architecture: GGUF_FAMILIES[base.model_type].architecture, ...rest }),
    ['adapter.type', text('lora')],
    ['adapter.lora.alpha', real(alpha)],
  ]);
}

function general(
  kind: 'model' | 'adapter',
  options: { readonly architecture: string; readonly name: string; readonly type: GgufType },
): [string, MetadataValue][] {
  return [
    ['general.architecture', text(options.architecture)],
    ['general.type', text(kind)],
    ['general.name', text(options.name)],
    ['general.file_type', count(FILE_TYPES[options.type].id)],
    ['general.quantization_version', count(QUANTIZATION_VERSION)],
  ];
}

/** Refuses what a config.json may say and llama.cpp would pass over. */
function requireComputed(config: ModelConfig): void {
  const { model_type: family } = config;
  if (family === 'gpt2') {
    if (config.activation_function !== 'gelu_new') {
      throw unknownTo('gpt2', `activation_function '${config.activation_function}'`);
    }
  } else if (!GGUF_FAMILIES[family].isGeneral) {
    if (config.rope_scaling?.rope_type === 'llama3') {
      throw unknownTo(family, "rope_scaling, which it reads for 'llama' alone");
    }
    const bias = (['attention_bias', 'mlp_bias'] as const).find((name) => config[name]);
    if (bias !== undefined) {
      throw unknownTo(family, bias);
    }
    const { no_rope_layers: ropes = [], layer_types: kinds = [] } = config;
    if (ropes.some((hasRope, layer) => (hasRope === 0) !== ((layer + 1) % 4 === 0))) {
      throw unknownTo(family, 'no_rope_layers in which other layers than each fourth have a 0');
    }
    if (kinds.some((kind, layer) => (kind === 'full_attention') !== ((layer + 1) % 6 === 0))) {
      throw unknownTo(family, 'layer_types in which other layers than each sixth are full');
    }
    if ((config.rope_local_base_freq ?? LOCAL_BASE) !== LOCAL_BASE) {
      throw unknownTo(family, `rope_local_base_freq other than ${LOCAL_BASE}`);
    }
    const scalar = attentionScalar(config);
    if ((config.query_pre_attn_scalar ?? scalar) !== scalar) {
      throw unknownTo(family, `query_pre_attn_scalar other than ${scalar}`);
    }
  }
}

/** The base of Gemma 3's sliding layers. Versions of llama.cpp may have no key for another one. */
export const LOCAL_BASE = 10_000;

/**
 * What llama.cpp divides Gemma 3's scores by the root of. It has no key for it, and knows the model
 * of 27 billion weights by its layers.
 */
export function attentionScalar(
  config: Pick<
    DecoderConfig,
    'hidden_size' | 'num_hidden_layers' | 'num_attention_heads' | 'head_dim'
  >,
): number {
  const is27B = config.num_hidden_layers === 62;
  return is27B ? config.hidden_size / config.num_attention_heads : config.head_dim;
}

type Values = Readonly<Record<string, MetadataValue>>;

function decoderValues(config: DecoderConfig): Values {
  return {
    block_count: count(config.num_hidden_layers),
    context_length: count(config.max_position_embeddings),
    embedding_length: count(config.hidden_size),
    feed_forward_length: count(config.intermediate_size),
    vocab_size: count(config.vocab_size),
    'attention.head_count': count(config.num_attention_heads),
    'attention.head_count_kv': count(config.num_key_value_heads),
    'attention.key_length': count(config.head_dim),
    'attention.value_length': count(config.head_dim),
    'attention.layer_norm_rms_epsilon': real(config.rms_norm_eps),
    'rope.dimension_count': count(config.head_dim),
    'rope.freq_base': real(config.rope_theta),
    ...(config.sliding_window !== undefined && {
      'attention.sliding_window': count(config.sliding_window),
    }),
    ...(config.rope_scaling?.rope_type === 'linear' && {
      'rope.scaling.type': text('linear'),
      'rope.scaling.factor': real(config.rope_scaling.factor),
    }),
  };
}

function encoderValues(config: EncoderConfig): Values {
  return {
    block_count: count(config.num_hidden_layers),
    context_length: count(config.max_position_embeddings),
    embedding_length: count(config.hidden_size),
    feed_forward_length: count(config.intermediate_size),
    vocab_size: count(config.vocab_size),
    'attention.head_count': count(config.num_attention_heads),
    'attention.layer_norm_epsilon': real(config.layer_norm_eps),
    'attention.causal': { type: 'bool', value: false },
  };
}

function gpt2Values(config: Gpt2Config): Values {
  return {
    block_count: count(config.n_layer),
    context_length: count(config.n_positions),
    embedding_length: count(config.n_embd),
    feed_forward_length: count(config.n_inner ?? 4 * config.n_embd),
    vocab_size: count(config.vocab_size),
    'attention.head_count': count(config.n_head),
    'attention.layer_norm_epsilon': real(config.layer_norm_epsilon),
  };
}

function unknownTo(architecture: string, what: string): GgufModelError {
  return new GgufModelError(
    `config.json: expected a model as llama.cpp computes it, got ${what}. Its ${architecture} has no such thing.`,
  );
}

function text(value: string): MetadataValue {
  return { type: 'string', value };
}

function count(value: number): MetadataValue {
  return { type: 'u32', value };
}

function real(value: number): MetadataValue {
  return { type: 'f32', value };
}
