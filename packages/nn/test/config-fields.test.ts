// Every field of every model's config.json: each value that a model computes with goes out and
// comes back, each that asks for another computation is refused by name, and null is no value.

import { makeModel, modelConfigText, parameterCount, parseModelConfig } from '@shardweave/nn';
import {
  Encoder,
  encoderConfigText,
  encoderParameterCount,
  parseEncoderConfig,
  parseSequenceClassifierConfig,
  sequenceClassifierConfigText,
} from '@shardweave/nn/embedding';
import { describe, expect, it } from 'vitest';
import { loose } from '../../../tooling/test-kit/index.ts';
import { makeDevice } from './support/support.js';

type Fields = Readonly<Record<string, unknown>>;

interface Model {
  /** A whole config.json. */
  readonly file: Fields;
  readonly parse: (text: string) => object;
  readonly text: (config: object) => string;
  /** Another value of fields that the model computes with. */
  readonly own: Fields;
  /** Values of fields that ask for another computation. */
  readonly refused: readonly (readonly [name: string, value: unknown])[];
  /** Fields that change nothing. */
  readonly harmless: Fields;
}

const LANGUAGE = {
  parse: parseModelConfig,
  text: (config: object) => modelConfigText(loose(config)),
};
const DECODER_FILE = {
  vocab_size: 40,
  hidden_size: 16,
  intermediate_size: 24,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  max_position_embeddings: 32,
};
const LLAMA3 = {
  rope_type: 'llama3',
  factor: 8,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 16,
};
const DECODER_OWN = {
  vocab_size: 41,
  hidden_size: 32,
  intermediate_size: 25,
  num_hidden_layers: 3,
  num_attention_heads: 2,
  num_key_value_heads: 2,
  head_dim: 6,
  max_position_embeddings: 33,
  rms_norm_eps: 1e-5,
  rope_theta: 5e5,
  rope_scaling: LLAMA3,
  tie_word_embeddings: true,
  attention_dropout: 0.1,
  initializer_range: 0.5,
  bos_token_id: 0,
  eos_token_id: [2, 3],
  pad_token_id: 4,
};
const DECODER_REFUSED = [
  ['hidden_act', 'gelu'],
  ['use_sliding_window', true],
  ['use_mrope', true],
  ['rope_interleaved', true],
  ['partial_rotary_factor', 0.5],
  ['layer_types', ['full_attention', 'sliding_attention']],
  ['is_encoder_decoder', true],
  ['add_cross_attention', true],
  ['head_dim', 3],
  ['num_key_value_heads', 3],
  ['rms_norm_eps', 0],
  ['rope_theta', 1],
  ['rope_scaling', { ...LLAMA3, low_freq_factor: 4 }],
  ['rope_scaling', { ...LLAMA3, type: 'linear' }],
  ['rope_scaling', { ...LLAMA3, beta_fast: 32 }],
  ['rope_scaling', { ...LLAMA3, factor: 0 }],
  ['rope_parameters', { rope_type: 'yarn' }],
] as const;
const HARMLESS = {
  torch_dtype: 'bfloat16',
  transformers_version: '4.0',
  use_cache: true,
  _name_or_path: 'x',
  gates_of_a_later_version: false,
  adapters_of_another: {},
  nothing: null,
};

const decoder = (family: string, change: Partial<Model> = {}): Model => ({
  ...LANGUAGE,
  file: { ...DECODER_FILE, model_type: family },
  own: { ...DECODER_OWN, ...change.own },
  refused: [...DECODER_REFUSED, ...(change.refused ?? [])],
  harmless: { ...HARMLESS, layer_types: ['full_attention'], ...change.harmless },
});

const ENCODER_FILE = {
  model_type: 'bert',
  vocab_size: 40,
  hidden_size: 16,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  intermediate_size: 24,
};
const ENCODER_OWN = {
  vocab_size: 41,
  hidden_size: 32,
  num_hidden_layers: 3,
  num_attention_heads: 2,
  intermediate_size: 25,
  hidden_act: 'gelu_new',
  hidden_dropout_prob: 0,
  attention_probs_dropout_prob: 0.25,
  max_position_embeddings: 33,
  type_vocab_size: 1,
  initializer_range: 0.5,
  layer_norm_eps: 1e-5,
  pad_token_id: 7,
};
const ENCODER_REFUSED = [
  ['position_embedding_type', 'relative_key'],
  ['is_decoder', true],
  ['add_cross_attention', true],
  ['hidden_act', 'relu'],
  ['num_attention_heads', 16], // heads of an odd width
  ['layer_norm_eps', 0],
  ['hidden_dropout_prob', 1],
] as const;
/** Fields of a classifier's head. */
const HEAD = {
  id2label: { 0: 'no', 1: 'yes', 2: 'perhaps' },
  label2id: { no: 0, yes: 1, perhaps: 2 },
  problem_type: 'regression',
};
const HEAD_REFUSED = [
  ['id2label', {}],
  ['id2label', { 1: 'a', 2: 'b' }],
  ['id2label', { 0: 3 }],
  ['problem_type', 'ranking'],
] as const;
const CLASSIFIER = {
  parse: parseSequenceClassifierConfig,
  text: (config: object) => sequenceClassifierConfigText(loose(config)),
};

const MODELS: Readonly<Record<string, Model>> = {
  gpt2: {
    ...LANGUAGE,
    file: { vocab_size: 40, n_embd: 16, n_head: 4, n_layer: 2, n_positions: 32 },
    own: {
      vocab_size: 41,
      n_embd: 32,
      n_layer: 3,
      n_head: 2,
      n_inner: 24,
      layer_norm_epsilon: 1e-6,
      embd_pdrop: 0,
      attn_pdrop: 0.2,
      resid_pdrop: 0.3,
      activation_function: 'gelu',
      initializer_range: 0.5,
    },
    refused: [
      ['tie_word_embeddings', false],
      ['scale_attn_weights', false],
      ['scale_attn_by_inverse_layer_idx', true],
      ['reorder_and_upcast_attn', true],
      ['add_cross_attention', true],
      ['is_encoder_decoder', true],
      ['n_ctx', 16],
      ['pruned_heads', { 0: [1] }],
      ['model_type', 'mamba'],
      ['architectures', ['GPT2DoubleHeadsModel']],
      ['activation_function', 'relu'],
      ['n_head', 16],
    ],
    harmless: { ...HARMLESS, n_ctx: 32, pruned_heads: {}, summary_type: 'cls_index', n_special: 1 },
  },
  llama: decoder('llama', {
    own: { attention_bias: true, mlp_bias: true },
    refused: [
      ['sliding_window', 64],
      ['max_window_layers', 3],
      ['architectures', ['LlamaForCausalLM', 'LlamaForSequenceClassification']],
    ],
  }),
  qwen2: decoder('qwen2', {
    refused: [
      ['attention_bias', true],
      ['mlp_bias', true],
      ['architectures', ['LlamaForCausalLM']],
    ],
    harmless: { sliding_window: 64, max_window_layers: 3 },
  }),
  qwen3: decoder('qwen3', {
    own: { attention_bias: true },
    refused: [['mlp_bias', true]],
    harmless: { sliding_window: 64, max_window_layers: 3 },
  }),
  bert: {
    file: ENCODER_FILE,
    parse: parseEncoderConfig,
    text: (config) => encoderConfigText(loose(config)),
    own: { ...ENCODER_OWN, add_pooling_layer: true },
    refused: [...ENCODER_REFUSED, ['model_type', 'gpt2'], ['architectures', ['BertForNextWord']]],
    harmless: { ...HARMLESS, classifier_dropout: 0.1, pooler_type: 'first', bos_token_id: 1 },
  },
  'a bert that classifies': {
    ...CLASSIFIER,
    file: { ...ENCODER_FILE, architectures: ['BertForSequenceClassification'], ...HEAD },
    own: { ...ENCODER_OWN, classifier_dropout: 0 },
    refused: [
      ...ENCODER_REFUSED,
      ...HEAD_REFUSED,
      ['classifier_dropout', 1],
      ['architectures', ['BertModel']],
      ['architectures', ['LlamaForSequenceClassification']],
    ],
    harmless: HARMLESS,
  },
  'a llama that classifies': {
    ...CLASSIFIER,
    file: {
      ...DECODER_FILE,
      model_type: 'llama',
      architectures: ['LlamaForSequenceClassification'],
      tie_word_embeddings: true,
      ...HEAD,
    },
    own: DECODER_OWN,
    refused: [...DECODER_REFUSED, ...HEAD_REFUSED],
    harmless: { ...HARMLESS, classifier_dropout: 7, tie_word_embeddings: false },
  },
};

describe.each(Object.entries(MODELS))('the config.json of %s', (_, model) => {
  const { file, parse, text, own, refused, harmless } = model;
  const read = (change: Fields) => parse(JSON.stringify({ ...file, ...change }));
  const plain = read({});

  it('brings each field that the model computes with, and writes it', () => {
    for (const [name, value] of Object.entries(own)) {
      const config = read({ [name]: value });
      const written = JSON.parse(text(config)) as Fields;
      expect(JSON.stringify(config), name).toContain(JSON.stringify(value));
      expect(written[name], name).toEqual(value);
      expect(parse(text(config)), name).toEqual(config);
    }
    const all = read(own);
    expect(parse(text(all))).toEqual(all);
  });

  it('is refused with a field that asks for another computation', () => {
    for (const [name, value] of refused) {
      expect(() => read({ [name]: value }), `${name} ${JSON.stringify(value)}`).toThrow(name);
    }
    expect(() => read({ gates_of_a_later_version: 3 })).toThrow('gates_of_a_later_version');
    for (const wrong of ['{', '[]', 'null', '3']) {
      expect(() => parse(wrong)).toThrow(/config.json: expected (JSON|an object)/);
    }
  });

  it('is read as without fields that change nothing or are null', () => {
    for (const [name, value] of Object.entries(harmless)) {
      expect(read({ [name]: value }), name).toEqual(plain);
    }
    for (const name of Object.keys(own).filter((each) => !(each in file))) {
      expect(read({ [name]: null }), name).toEqual(plain);
    }
  });
});

describe('what a config says twice', () => {
  const llama = MODELS.llama!;
  const read = (change: Fields) => llama.parse(JSON.stringify({ ...llama.file, ...change }));

  it('is one thing, or is refused', () => {
    const { rope_type, ...factors } = LLAMA3;
    const expected = read({ rope_scaling: LLAMA3, rope_theta: 5e5 });
    for (const change of [
      { rope_parameters: { ...LLAMA3, rope_theta: 5e5 } },
      { rope_parameters: { ...factors, type: rope_type, rope_theta: 5e5 } },
      { rope_scaling: LLAMA3, rope_parameters: { ...LLAMA3, rope_theta: 5e5 }, rope_theta: 5e5 },
    ]) {
      expect(read(change)).toEqual(expected);
    }
    for (const change of [
      { rope_theta: 5e5, rope_parameters: { rope_type: 'default', rope_theta: 1e4 } },
      { rope_scaling: LLAMA3, rope_parameters: { ...LLAMA3, factor: 2 } },
      { rope_scaling: LLAMA3, rope_parameters: { rope_type: 'default' } },
    ]) {
      expect(() => read(change)).toThrow('to say the same');
    }
  });
});

describe('labels', () => {
  it('are as many as num_labels says, or two, where the file does not name them', () => {
    const { id2label: _, label2id: __, ...file } = MODELS['a bert that classifies']!.file;
    const labels = (change: Fields) =>
      parseSequenceClassifierConfig(JSON.stringify({ ...file, ...change })).labels;
    expect(labels({})).toEqual(['LABEL_0', 'LABEL_1']);
    expect(labels({ num_labels: 3, id2label: null })).toEqual(['LABEL_0', 'LABEL_1', 'LABEL_2']);
    expect(labels({ num_labels: 1 })).toEqual(['LABEL_0']);
    for (const wrong of [0, 1.5, 1e7, '2']) {
      expect(() => labels({ num_labels: wrong })).toThrow('num_labels');
    }
  });
});

it('a model has as many parameters as its formula says, with each of its fields', () => {
  const device = makeDevice();
  for (const [name, { file, own, parse }] of Object.entries(MODELS)) {
    const isEncoder = name === 'bert';
    const changes = Object.entries(own).map(([field, value]) => ({ [field]: value }));
    for (const change of name.includes('classifies') ? [] : [{}, own, ...changes]) {
      const config = loose(parse(JSON.stringify({ ...file, ...change })));
      const options = { deferInit: true };
      const model = isEncoder
        ? new Encoder(device, config, options)
        : makeModel(device, config, options);
      const count = model.parameters().reduce((sum, { size }) => sum + size, 0);
      const expected = isEncoder ? encoderParameterCount(config) : parameterCount(config);
      expect(count, `${name} ${JSON.stringify(change)}`).toBe(expected);
    }
  }
});
