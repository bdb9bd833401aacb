// These are small random models of every family, as directories of the Hub store them.
import { readFileSync } from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';
import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import {
  AdamW,
  applyLora,
  Decoder,
  type DecoderOptions,
  Gpt2,
  type Gpt2Config,
  type HostTensor,
  type LoraOptions,
  loadStateDict,
  modelConfigText,
  peftState,
  readPeftState,
  stateDict,
} from '@shardweave/nn';
import { Device, mean } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import {
  GEMMA_CONFIG,
  GEMMA_TEMPLATE,
  sentencePieceText,
} from '../../../../tooling/test-kit/sentence-piece.ts';

const TOKENIZER = new URL('../../../../tooling/tokenizer/', import.meta.url);
const file = (name: string) => readFileSync(new URL(name, TOKENIZER), 'utf8');

/** Returns a tokenizer of about 512 tokens that splits texts as the family's own does. */
export function tokenizerText(pre: PreName): string {
  if (pre === 'gemma') {
    return sentencePieceText(pre);
  }
  const json = JSON.parse(file('tokenizer.json'));
  return JSON.stringify({
    ...json,
    normalizer: pre === 'qwen2' ? json.normalizer : null,
    pre_tokenizer: PRE[pre](json.pre_tokenizer),
    model: { ...json.model, ignore_merges: pre === 'llama-bpe' },
  });
}

export const tokenizerConfigText = file('tokenizer_config.json');

/** Returns the tokenizer_config.json beside a tokenizer. */
export function configTextOf(pre: PreName): string {
  return pre === 'gemma'
    ? JSON.stringify({ ...GEMMA_CONFIG, chat_template: GEMMA_TEMPLATE })
    : tokenizerConfigText;
}

export type PreName = 'qwen2' | 'llama-bpe' | 'gpt-2' | 'smollm' | 'gemma';

const words = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
const PRE: Readonly<Record<Exclude<PreName, 'gemma'>, (qwen: unknown) => unknown>> = {
  qwen2: (qwen) => qwen,
  'llama-bpe': (qwen) =>
    JSON.parse(JSON.stringify(qwen).replace('|\\\\p{N}|', '|\\\\p{N}{1,3}|')) as unknown,
  'gpt-2': () => words,
  smollm: () => ({
    type: 'Sequence',
    pretokenizers: [{ type: 'Digits', individual_digits: true }, words],
  }),
};

const SIZES = {
  vocab_size: 512,
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 256,
  initializer_range: 0.15,
};

export interface SmallModel {
  readonly config: DecoderOptions | Partial<Gpt2Config>;
  readonly pre: PreName;
}

/** One or more models of each family, and what distinguishes them. */
export const SMALL_MODELS = {
  llama: {
    pre: 'llama-bpe',
    config: {
      ...SIZES,
      model_type: 'llama',
      rope_theta: 500_000,
      rms_norm_eps: 1e-5,
      rope_scaling: {
        rope_type: 'llama3',
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 64,
      },
    },
  },
  'llama with biases, tied': {
    pre: 'smollm',
    config: {
      ...SIZES,
      model_type: 'llama',
      tie_word_embeddings: true,
      attention_bias: true,
      mlp_bias: true,
    },
  },
  qwen2: {
    pre: 'qwen2',
    config: { ...SIZES, model_type: 'qwen2', tie_word_embeddings: true, rope_theta: 1e6 },
  },
  qwen3: { pre: 'qwen2', config: { ...SIZES, model_type: 'qwen3', head_dim: 32 } },
  smollm3: {
    pre: 'llama-bpe',
    config: {
      ...SIZES,
      model_type: 'smollm3',
      num_hidden_layers: 4, // the fourth has no positions
      rope_theta: 5e6,
      initializer_range: 0.1, // with more layers rounding to 8 bits moves logits further
    },
  },
  gemma3: {
    pre: 'gemma',
    config: {
      ...SIZES,
      vocab_size: 640,
      model_type: 'gemma3_text',
      num_hidden_layers: 7, // the sixth sees all
      head_dim: 32,
      query_pre_attn_scalar: 32,
      sliding_window: 9,
      rope_scaling: { rope_type: 'linear', factor: 4 },
    },
  },
  gpt2: {
    pre: 'gpt-2',
    config: {
      model_type: 'gpt2',
      vocab_size: 512,
      n_positions: 256,
      n_embd: 64,
      n_layer: 2,
      n_head: 4,
      initializer_range: 0.15,
    },
  },
} as const satisfies Readonly<Record<string, SmallModel>>;

/** A model whose rows are whole blocks of 256. In a mixture its second layer has more bits. */
export const WIDE: SmallModel = {
  pre: 'llama-bpe',
  config: {
    ...SIZES,
    model_type: 'llama',
    hidden_size: 256,
    intermediate_size: 256,
    initializer_range: 0.06,
  },
};

/**
 * Enough training steps that the likeliest token leads by more than rounding to 8 bits moves
 * logits.
 */
const STEPS = 20;

let backend: ReturnType<typeof createCpuBackend> | undefined;

/**
 * Returns a model that has learnt a text, since a random model's logits would be too close
 * together. Vectors are random too: norms of ones and biases of zeros could be stored in each
 * other's place unnoticed.
 */
export async function makeSmall({ config, pre }: SmallModel, text: string) {
  const model = await newModel(config);
  const { device } = model;
  let seed = 1;
  const random = () => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed / 2_147_483_647 - 0.5;
  };
  const state = new Map<string, HostTensor>();
  for (const [name, tensor] of await stateDict(model)) {
    const values = toF32Array(tensor.data, 'f32');
    const moved = tensor.shape.length === 1 ? values.map((value) => value + random()) : values;
    state.set(name, { ...tensor, data: fromF32Array(moved, 'f32') });
  }
  await loadStateDict(model, state);
  model.eval();
  const tokenizer = new Tokenizer(JSON.parse(tokenizerText(pre)), JSON.parse(configTextOf(pre)));
  const encode = (of: string) => tokenizer.encode(of, { add_special_tokens: false }).ids;
  await learn(model, encode(text));
  const texts = textsOf(model, pre);
  /** Returns rows of logits, one after each token. */
  const logits = async (tokens: readonly number[]): Promise<Float32Array[]> => {
    const ids = device.tensor(Int32Array.from(tokens), [1, tokens.length]);
    const all = (await (await device.noGrad(() => model.call(ids))).toArray()) as Float32Array;
    const vocab = model.config.vocab_size;
    return tokens.map((_, row) => all.subarray(row * vocab, (row + 1) * vocab));
  };
  /**
   * Puts adapters with random values into the model, and returns the content of PEFT's
   * adapter_model.safetensors. From then on, logits are those with adapters.
   */
  const adapt = async (options: LoraOptions): Promise<Map<string, HostTensor>> => {
    applyLora(model, options);
    const factors = new Map<string, HostTensor>();
    for (const [name, tensor] of peftState(await stateDict(model))) {
      const values = toF32Array(tensor.data, 'f32').map(() => random() / 4);
      factors.set(name, { ...tensor, data: fromF32Array(values, 'f32') });
    }
    await loadStateDict(model, readPeftState(factors), { strict: false });
    return factors;
  };
  return { state: await stateDict(model), texts, config: model.config, encode, logits, adapt };
}

/** Returns a model of any shape, all zeros: what its file says of each tensor is quick to judge. */
export async function zeroModel({ config, pre }: SmallModel) {
  const model = await newModel(config);
  const state = new Map<string, HostTensor>();
  for (const [name, tensor] of await stateDict(model)) {
    state.set(name, { ...tensor, data: new Uint8Array(tensor.data.byteLength) });
  }
  return { state, texts: textsOf(model, pre) };
}

async function newModel(config: SmallModel['config']): Promise<Gpt2 | Decoder> {
  backend ??= createCpuBackend({ threads: 1 });
  const device = new Device(await backend);
  return config.model_type === 'gpt2'
    ? new Gpt2(device, config as Partial<Gpt2Config>)
    : new Decoder(device, config as DecoderOptions);
}

function textsOf(model: Gpt2 | Decoder, pre: PreName): Map<string, string> {
  return new Map([
    ['config.json', modelConfigText(model.config)],
    ['tokenizer.json', tokenizerText(pre)],
    ['tokenizer_config.json', configTextOf(pre)],
  ]);
}

/**
 * Returns a model of one layer and minimal width, all zeros, with which a vocabulary can be
 * written.
 */
export function bareModel(vocabSize: number, width = 2) {
  const config = {
    model_type: 'llama',
    vocab_size: vocabSize,
    hidden_size: width,
    intermediate_size: 1,
    num_hidden_layers: 1,
    num_attention_heads: 1,
    max_position_embeddings: 8,
    tie_word_embeddings: true,
  } as const;
  const zeros = (...shape: readonly number[]): HostTensor => {
    const bytes = shape.reduce((product, size) => product * size, 4);
    return { dtype: 'f32', shape, data: new Uint8Array(bytes) };
  };
  const layer = 'model.layers.0';
  const attention = ['q', 'k', 'v', 'o'].map(
    (name) => [`${layer}.self_attn.${name}_proj.weight`, zeros(width, width)] as const,
  );
  const state = new Map<string, HostTensor>([
    ['model.embed_tokens.weight', zeros(vocabSize, width)],
    [`${layer}.input_layernorm.weight`, zeros(width)],
    ...attention,
    [`${layer}.post_attention_layernorm.weight`, zeros(width)],
    [`${layer}.mlp.gate_proj.weight`, zeros(1, width)],
    [`${layer}.mlp.up_proj.weight`, zeros(1, width)],
    [`${layer}.mlp.down_proj.weight`, zeros(width, 1)],
    ['model.norm.weight', zeros(width)],
  ]);
  const texts = new Map([
    ['config.json', JSON.stringify(config)],
    ['tokenizer.json', tokenizerText('qwen2')],
    ['tokenizer_config.json', tokenizerConfigText],
  ]);
  return { texts, state };
}

async function learn(model: Gpt2 | Decoder, tokens: readonly number[]): Promise<void> {
  const { device } = model;
  const optimizer = new AdamW(model.parameters(), { lr: 3e-3 });
  const row = (from: number) =>
    device.tensor(Int32Array.from(tokens.slice(from, tokens.length - 1 + from)), [
      1,
      tokens.length - 1,
    ]);
  for (let step = 0; step < STEPS; step++) {
    await device.scope(async () => {
      await mean(await model.call(row(0), { targets: row(1) })).backward();
      await optimizer.step();
      optimizer.zeroGrad();
    });
  }
  optimizer.dispose();
}
