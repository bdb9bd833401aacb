// The configuration of a file's model, as the text of a config.json of the Hub: the way back from
// model-metadata.ts. A key that were silently ignored could mean that the file has another model.

import { modelConfigText, parseModelConfig } from '@shardweave/nn';
import { GgufModelError } from '../errors.js';
import { type Family, GGUF_FAMILIES } from '../families.js';
import { attentionScalar, LOCAL_BASE } from '../model-metadata.js';
import type { GgufValue } from './metadata-values.js';
import type { Gguf } from './open-gguf.js';
import { ropeScalingOf } from './rope-scaling.js';

const FAMILIES = Object.keys(GGUF_FAMILIES) as readonly Family[];
const ARCHITECTURES = FAMILIES.map((name) => GGUF_FAMILIES[name].architecture);
const TOKEN_TABLE = 'token_embd.weight';
export const HEAD = 'output.weight';

/** Keys that change nothing here. */
const HARMLESS: ReadonlySet<string> = new Set([
  'vocab_size', // the rows of the token table count
  'expert_used_count',
  'rope.scaling.finetuned',
  'rope.scaling.original_context_length',
  'tensor_data_layout',
]);

/**
 * The text of the config.json of a file's model. What the file can't say, such as dropouts, has
 * the defaults of its family.
 * @throws {GgufModelError} for another architecture, for a key that is missing or is no number that
 * a model can have, and for one that asks for what the model here does not compute
 */
export async function ggufConfigText(gguf: Gguf): Promise<string> {
  const keys = new Keys(gguf.metadata);
  const family = familyOf(keys);
  const ids = {
    bos_token_id: keys.tokenId('bos'),
    eos_token_id: keys.tokenId('eos'),
    pad_token_id: keys.tokenId('padding'),
  };
  const fields =
    family === 'gpt2' ? gpt2Fields(gguf, keys) : await decoderFields(gguf, { family, keys });
  keys.refuseOthers();
  return modelConfigText(
    parseModelConfig(JSON.stringify({ model_type: family, ...fields, ...ids })),
  );
}

function familyOf(keys: Keys): Family {
  const kind = keys.general('type') ?? 'model';
  if (kind !== 'model') {
    throw new GgufModelError(
      `general.type: expected a model, got ${JSON.stringify(kind)}. Give the file of the model beside which it is used.`,
    );
  }
  const found = keys.general('architecture');
  const family = FAMILIES.find((name) => GGUF_FAMILIES[name].architecture === found);
  if (family === undefined) {
    throw new GgufModelError(
      `general.architecture: expected ${ARCHITECTURES.join(', ')}, got ${found === undefined ? 'none' : JSON.stringify(found)}. Other models are not supported.`,
    );
  }
  keys.prefix = `${found}.`;
  return family;
}

type Fields = Readonly<Record<string, unknown>>;

async function decoderFields(
  gguf: Gguf,
  { family, keys }: { readonly family: Family; readonly keys: Keys },
): Promise<Fields> {
  const { tensors } = gguf;
  const width = keys.count('embedding_length');
  const heads = keys.count('attention.head_count');
  const positions = keys.count('context_length');
  const headDim = keys.count('attention.key_length', width / heads);
  keys.require('attention.value_length', (size) => size === headDim, `${headDim}, as keys have`);
  keys.require(
    'rope.dimension_count',
    (size) => size === headDim,
    `${headDim}: all of a head turns`,
  );
  const isGemma = family === 'gemma3_text';
  if (!isGemma) {
    keys.require('rope.scaling.type', (type) => type === 'none', "'none'");
    keys.require('rope.scaling.factor', (factor) => factor === 1, '1');
    keys.require(
      'attention.sliding_window',
      (size) => typeof size === 'number' && (size === 0 || size >= positions),
      `none below context_length ${positions}`,
    );
  }
  const angles = { rope_theta: keys.real('rope.freq_base', 10_000), head_dim: headDim };
  const { isGeneral } = GGUF_FAMILIES[family];
  const scaling = isGeneral ? await ropeScalingOf(gguf, angles) : linearScaling(keys);
  const biases = {
    attention_bias: tensors.has('blk.0.attn_q.bias'),
    mlp_bias: tensors.has('blk.0.ffn_up.bias'),
  };
  const fields = {
    vocab_size: rowsOfTable(gguf),
    hidden_size: width,
    intermediate_size: keys.count('feed_forward_length'),
    num_hidden_layers: layersOf(gguf, keys),
    num_attention_heads: heads,
    num_key_value_heads: keys.count('attention.head_count_kv', heads),
    ...angles,
    rope_scaling: scaling,
    max_position_embeddings: positions,
    rms_norm_eps: keys.real('attention.layer_norm_rms_epsilon'),
    tie_word_embeddings: !tensors.has(HEAD),
    ...(isGeneral ? biases : {}),
  };
  return !isGemma
    ? fields
    : {
        ...fields,
        sliding_window: keys.count('attention.sliding_window'),
        sliding_window_pattern: keys.count('attention.sliding_window_pattern', 6),
        rope_local_base_freq: keys.real('rope.freq_base_swa', LOCAL_BASE),
        query_pre_attn_scalar: attentionScalar(fields),
      };
}

/** The scaling that a file says by keys; null where it says none, or one that changes nothing. */
function linearScaling(keys: Keys): { readonly rope_type: string; readonly factor: number } | null {
  const factor = keys.real('rope.scaling.factor', 1);
  keys.require('rope.scaling.type', (type) => type === 'none' || type === 'linear', "'linear'");
  return factor === 1 ? null : { rope_type: 'linear', factor };
}

function gpt2Fields(gguf: Gguf, keys: Keys): Fields {
  const width = keys.count('embedding_length');
  const inner = keys.count('feed_forward_length', 4 * width);
  return {
    vocab_size: rowsOfTable(gguf),
    n_positions: keys.count('context_length'),
    n_embd: width,
    n_layer: layersOf(gguf, keys),
    n_head: keys.count('attention.head_count'),
    n_inner: inner === 4 * width ? null : inner,
    layer_norm_epsilon: keys.real('attention.layer_norm_epsilon'),
  };
}

/** The number of blocks, each of which has tensors: a number that lies is not believed. */
function layersOf({ tensors }: Gguf, keys: Keys): number {
  const layers = keys.count('block_count');
  if (layers > tensors.size) {
    throw new GgufModelError(
      `block_count: expected at most as many blocks as tensors (${tensors.size}), got ${layers}. The file is damaged.`,
    );
  }
  return layers;
}

function rowsOfTable({ tensors }: Gguf): number {
  const table = tensors.get(TOKEN_TABLE);
  if (table?.shape.length !== 2) {
    throw new GgufModelError(
      `expected the matrix '${TOKEN_TABLE}', got ${table === undefined ? 'none' : `[${table.shape.join(', ')}]`}. The file has no whole model.`,
    );
  }
  return table.shape[0]!;
}

/** The keys of an architecture, which remembers those that were asked for. */
class Keys {
  /** The beginning of the architecture's keys. */
  prefix = '';
  readonly #metadata: ReadonlyMap<string, GgufValue>;
  readonly #known = new Set<string>();

  constructor(metadata: ReadonlyMap<string, GgufValue>) {
    this.#metadata = metadata;
  }

  general(key: string): unknown {
    return this.#metadata.get(`general.${key}`)?.value;
  }

  tokenId(which: string): number | null {
    const value = this.#metadata.get(`tokenizer.ggml.${which}_token_id`)?.value;
    return typeof value === 'number' ? value : null;
  }

  /** A whole number above 0. */
  count(key: string, otherwise?: number): number {
    const value = this.#get(key) ?? otherwise;
    const number = typeof value === 'bigint' ? Number(value) : value;
    if (typeof number === 'number' && Number.isSafeInteger(number) && number > 0) {
      return number;
    }
    throw this.#error(key, 'a whole number above 0', value);
  }

  /** A number above 0. One in f32 is the decimal number that was rounded to it, such as 1e-5. */
  real(key: string, otherwise?: number): number {
    const value = this.#get(key) ?? otherwise;
    if (typeof value === 'number' && value > 0 && value < Number.POSITIVE_INFINITY) {
      return decimalOf(value);
    }
    throw this.#error(key, 'a number above 0', value);
  }

  /** Refuses a key that is there and has another value. */
  require(key: string, holds: (value: unknown) => boolean, expected: string): void {
    const value = this.#get(key);
    if (value !== undefined && !holds(value)) {
      throw this.#error(key, expected, value);
    }
  }

  /** Refuses keys that nobody asked for, unless they say no or nothing. */
  refuseOthers(): void {
    for (const [name, { type, value }] of this.#metadata) {
      const key = name.slice(this.prefix.length);
      const isOwn = name.startsWith(this.prefix) && !this.#known.has(key) && !HARMLESS.has(key);
      if (isOwn && value) {
        throw this.#error(key, 'no such key', type.endsWith('[]') ? 'a list' : value);
      }
    }
  }

  #get(key: string): unknown {
    this.#known.add(key);
    return this.#metadata.get(this.prefix + key)?.value;
  }

  #error(key: string, expected: string, value: unknown): GgufModelError {
    const got = value === undefined ? 'none' : Array.isArray(value) ? 'a list' : String(value);
    return new GgufModelError(
      `${this.prefix}${key}: expected ${expected}, got ${got}. A model that computes something else is not supported.`,
    );
  }
}

/** The shortest decimal number that f32 rounds to `value`; itself where it is not one of f32. */
function decimalOf(value: number): number {
  const isSingle = Math.fround(value) === value;
  for (let digits = 1; isSingle && digits <= 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) {
      return short;
    }
  }
  return value;
}
