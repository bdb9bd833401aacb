// What a decoder's config.json asks for. Every field of it is the model's own, known to change nothing, or
// refused by its name: one passed over in silence would be another model.

import {
  DECODER_FIELDS,
  type DecoderConfig,
  type DecoderFamily,
  type DecoderOptions,
  type RopeScaling,
  resolveDecoderConfig,
} from '../decoder/decoder-config.js';
import { FormatError } from '../errors.js';

export type ConfigFields = Readonly<Record<string, unknown>>;

const ARCHITECTURES: Readonly<Record<DecoderFamily, string>> = {
  llama: 'LlamaForCausalLM',
  qwen2: 'Qwen2ForCausalLM',
  qwen3: 'Qwen3ForCausalLM',
};

/** Fields that would change the computation, with the value that does not. */
const FIXED: Readonly<Record<string, unknown>> = {
  hidden_act: 'silu',
  use_sliding_window: false,
  use_mrope: false,
  rope_interleaved: false,
  partial_rotary_factor: 1,
  is_encoder_decoder: false,
  add_cross_attention: false,
};

/** Fields that change nothing here: names, dtypes, how others run it, and how text is made with it. */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['_name_or_path', 'architectures', 'torch_dtype', 'dtype', 'transformers_version'],
  ...['use_cache', 'return_dict', 'output_attentions', 'output_hidden_states', 'torchscript'],
  ...['attn_implementation', '_attn_implementation', '_attn_implementation_autoset'],
  ...['gradient_checkpointing', 'pretraining_tp', 'tp_plan', 'chunk_size_feed_forward'],
  ...['is_decoder', 'is_llama_config', 'unsloth_fixed', 'unsloth_version', 'tokenizer_class'],
  ...['unk_token_id', 'sep_token_id', 'decoder_start_token_id', 'id2label', 'label2id'],
  ...['problem_type', 'task_specific_params', 'finetuning_task', 'transformers.js_config'],
  ...['max_length', 'min_length', 'max_new_tokens', 'do_sample', 'temperature', 'top_k', 'top_p'],
  ...['repetition_penalty', 'length_penalty', 'num_beams', 'early_stopping', 'typical_p'],
  ...['num_return_sequences', 'no_repeat_ngram_size', 'suppress_tokens', 'use_bfloat16'],
]);
/** Which layers Qwen's windows would be in, and how wide: nothing while use_sliding_window is false. */
const WINDOWS = new Set(['sliding_window', 'max_window_layers']);

const OWN: ReadonlySet<string> = new Set(DECODER_FIELDS);
/** rope_parameters is what version 5 of transformers writes instead of rope_scaling and rope_theta. */
const ROTARY = ['rope_scaling', 'rope_parameters'] as const;
const FACTORS = [
  'factor',
  'low_freq_factor',
  'high_freq_factor',
  'original_max_position_embeddings',
] as const satisfies readonly (keyof RopeScaling)[];

/**
 * The decoder's options from the fields of its config.json.
 * @throws {FormatError} naming a field that asks for what the decoder does not compute, or that nobody knows
 * @throws {NnConfigError} naming a field whose value cannot work
 */
export function readDecoderConfig(fields: ConfigFields): DecoderConfig {
  const options: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || HARMLESS.has(name) || (ROTARY as readonly string[]).includes(name)) {
      continue; // null is the default
    }
    if (OWN.has(name)) {
      options[name] = value;
      continue;
    }
    requireHarmless(fields, name, value);
  }
  return resolveDecoderConfig({ ...options, ...readRotary(fields) } as unknown as DecoderOptions);
}

/** The fields of config.json. */
export function decoderConfigFields(config: DecoderConfig): ConfigFields {
  const { model_type: family, ...rest } = config;
  return {
    model_type: family,
    architectures: [ARCHITECTURES[family]],
    hidden_act: FIXED.hidden_act,
    ...Object.fromEntries(
      Object.entries(rest).filter(([name]) => family === 'llama' || !isForeign(family, name)),
    ),
    ...(family === 'llama' ? {} : { use_sliding_window: false }),
  };
}

/** Fields that a family's own configuration lacks. */
function isForeign(family: DecoderFamily, name: string): boolean {
  return name === 'mlp_bias' || (name === 'attention_bias' && family === 'qwen2');
}

function requireHarmless(fields: ConfigFields, name: string, value: unknown): void {
  const isUnusedWindow = fields.model_type !== 'llama' && WINDOWS.has(name);
  const isFull =
    name === 'layer_types' &&
    Array.isArray(value) &&
    value.every((type) => type === 'full_attention');
  if (isUnusedWindow || isFull || (Object.hasOwn(FIXED, name) && FIXED[name] === value)) {
    return;
  }
  const expected = Object.hasOwn(FIXED, name)
    ? `${name} to be ${JSON.stringify(FIXED[name])}`
    : name === 'layer_types'
      ? 'layer_types of full_attention alone'
      : `no ${name}`;
  throw new FormatError(
    `config.json: expected ${expected}, got ${JSON.stringify(value)}. This decoder computes nothing else for ${fields.model_type}.`,
  );
}

/** Base and scaling, under their older names. */
function readRotary(fields: ConfigFields): {
  readonly rope_theta?: unknown;
  readonly rope_scaling?: RopeScaling | null;
} {
  const field = ROTARY.find((name) => (fields[name] ?? null) !== null);
  if (field === undefined) {
    return {};
  }
  const given = fields[field];
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    throw new FormatError(
      `config.json: expected ${field} to be an object or null, got ${JSON.stringify(given)}.`,
    );
  }
  const { type, rope_type: kind = type, rope_theta: base, ...factors } = given as ConfigFields;
  const theta = base === undefined ? {} : { rope_theta: base };
  if (kind !== 'default' && kind !== 'llama3') {
    throw new FormatError(
      `config.json: expected ${field}.rope_type to be 'default' or 'llama3', got ${JSON.stringify(kind)}. This decoder stretches positions in no other way.`,
    );
  }
  const known: readonly string[] = kind === 'llama3' ? FACTORS : [];
  const unknown = Object.keys(factors).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new FormatError(
      `config.json: expected no ${field}.${unknown} beside rope_type '${kind}', got ${JSON.stringify(factors[unknown])}.`,
    );
  }
  const scaling = kind === 'llama3' ? { rope_type: kind, ...factors } : null;
  return { ...theta, rope_scaling: scaling as RopeScaling | null };
}
