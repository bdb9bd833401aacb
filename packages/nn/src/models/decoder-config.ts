// The options of a decoder, under the names of the Hub's config.json, checked and with the defaults
// of its family. What separates the families is a table, decoder-families.ts.

import {
  above,
  checkOptions,
  FLAG,
  given,
  type OptionRule,
  type OptionRules,
  oneOf,
  optional,
  PROBABILITY,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import {
  type DecoderFamily,
  FAMILIES,
  FAMILY_FIELDS,
  FAMILY_NAMES,
  familiesWith,
  type LayerFields,
} from './decoder-families.js';

/**
 * How rotary frequencies are stretched so that longer texts fit: the low ones, as in Llama 3.1, or
 * all of them, as in Gemma 3, whose windows keep theirs.
 */
export type RopeScaling =
  | {
      readonly rope_type: 'llama3';
      readonly factor: number;
      readonly low_freq_factor: number;
      readonly high_freq_factor: number;
      readonly original_max_position_embeddings: number;
    }
  | { readonly rope_type: 'linear'; readonly factor: number };

/**
 * A decoder's configuration with every field resolved, under the names of the Hub's config.json.
 */
export interface DecoderConfig extends LayerFields {
  readonly model_type: DecoderFamily;
  readonly vocab_size: number;
  /** The width of the model. */
  readonly hidden_size: number;
  /** The width of the feed-forward layer. */
  readonly intermediate_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  /**
   * The number of heads of keys and values, a divisor of num_attention_heads. Each is shared by
   * num_attention_heads / num_key_value_heads consecutive heads of queries.
   */
  readonly num_key_value_heads: number;
  /**
   * The width of a head, an even number. All heads together may be wider or narrower than the
   * model.
   */
  readonly head_dim: number;
  /** The most tokens that a sequence can have. */
  readonly max_position_embeddings: number;
  readonly rms_norm_eps: number;
  /** The base of the rotary frequencies. */
  readonly rope_theta: number;
  readonly rope_scaling: RopeScaling | null;
  /** Whether the head's weight is the token table. */
  readonly tie_word_embeddings: boolean;
  /**
   * Whether the projections q, k, v and o have biases. Qwen 2 always has those of q, k and v, never
   * that of o, and cannot set this field.
   */
  readonly attention_bias: boolean;
  /** Whether the feed-forward projections have biases. Only Llama and SmolLM3 can have them. */
  readonly mlp_bias: boolean;
  /** How many tokens a sliding layer sees, the own one too. Only Gemma 3 has it. */
  readonly sliding_window?: number | undefined;
  /** The base of the rotary frequencies of sliding layers. Only Gemma 3 has it. */
  readonly rope_local_base_freq?: number | undefined;
  /** Scores are divided by its root. Only Gemma 3 has it; for the others it is head_dim. */
  readonly query_pre_attn_scalar?: number | undefined;
  /** The probability of dropping an attention weight in training. */
  readonly attention_dropout: number;
  /** The standard deviation of the initial weights. */
  readonly initializer_range: number;
  /** Ids of special tokens. Tokenizers and generation use them; the model itself does not. */
  readonly bos_token_id: number | null;
  readonly eos_token_id: number | readonly number[] | null;
  readonly pad_token_id: number | null;
}

/** The fields that have no default. */
export type NeededField =
  | 'model_type'
  | 'vocab_size'
  | 'hidden_size'
  | 'intermediate_size'
  | 'num_hidden_layers'
  | 'num_attention_heads'
  | 'max_position_embeddings';

/**
 * A configuration as the user gives it: the fields without a default, and whichever others differ
 * from the family's defaults.
 */
export type DecoderOptions = Pick<DecoderConfig, NeededField> & Partial<DecoderConfig>;

const COUNT = whole(1);
const ID: OptionRule = {
  expected: "a token's id, or null",
  holds: (value) => value === null || whole(0).holds(value),
};
const IDS: OptionRule = {
  expected: "a token's id, a list of ids, or null",
  holds: (value) => ID.holds(value) || (Array.isArray(value) && value.every(whole(0).holds)),
};

const RULES: OptionRules<DecoderConfig> = {
  model_type: oneOf(...FAMILY_NAMES),
  vocab_size: COUNT,
  hidden_size: COUNT,
  intermediate_size: COUNT,
  num_hidden_layers: COUNT,
  num_attention_heads: COUNT,
  num_key_value_heads: optional(COUNT),
  head_dim: optional(whole(2)),
  max_position_embeddings: COUNT,
  rms_norm_eps: optional(above(0)),
  rope_theta: optional(above(1)),
  rope_scaling: optional({
    expected:
      "null, rope_type 'linear' with factor, or rope_type 'llama3' with factor, low_freq_factor, high_freq_factor and original_max_position_embeddings",
    holds: isRopeScaling,
  }),
  tie_word_embeddings: optional(FLAG),
  attention_bias: optional(FLAG),
  mlp_bias: optional(FLAG),
  no_rope_layers: optional(listOf(0, 1)),
  layer_types: optional(listOf('sliding_attention', 'full_attention')),
  sliding_window: optional(COUNT),
  rope_local_base_freq: optional(above(1)),
  query_pre_attn_scalar: optional(above(0)),
  attention_dropout: optional(PROBABILITY),
  initializer_range: optional(above(0)),
  bos_token_id: optional(ID),
  eos_token_id: optional(IDS),
  pad_token_id: optional(ID),
};

const DEFAULTS = {
  rms_norm_eps: 1e-6,
  rope_theta: 10_000,
  rope_scaling: null,
  tie_word_embeddings: false,
  attention_bias: false,
  mlp_bias: false,
  attention_dropout: 0,
  initializer_range: 0.02,
  bos_token_id: null,
  eos_token_id: null,
  pad_token_id: null,
} satisfies Partial<DecoderConfig>;

/** The names of all fields of a DecoderConfig. */
export const DECODER_FIELDS = Object.keys(RULES) as readonly (keyof DecoderConfig)[];

/** The fields that have something for each layer. */
const LAYER_FIELDS = ['no_rope_layers', 'layer_types'] as const satisfies (keyof LayerFields)[];

function listOf(...kinds: readonly unknown[]): OptionRule {
  return {
    expected: `a list of ${kinds.join(' or ')} for each layer`,
    holds: (value) => Array.isArray(value) && value.every((kind) => kinds.includes(kind)),
  };
}

/**
 * Checks a configuration and fills in its defaults.
 * @throws {NnConfigError} naming the field that is missing or cannot work
 */
export function resolveDecoderConfig(options: DecoderOptions): DecoderConfig {
  checkOptions('decoder', options, RULES);
  const { model_type: family, hidden_size: width, num_attention_heads: heads } = options;
  const { defaults, pattern } = FAMILIES[family];
  const config: DecoderConfig = {
    ...DEFAULTS,
    num_key_value_heads: heads,
    head_dim: width / heads,
    ...defaults,
    ...pattern?.of(options.num_hidden_layers),
    ...(given(options) as DecoderOptions),
  };
  const { num_key_value_heads: kvHeads, head_dim: headDim } = config;
  if (heads % kvHeads !== 0) {
    throw new NnConfigError(
      `decoder: expected num_key_value_heads to be a divisor of num_attention_heads (${heads}), got ${kvHeads}.`,
    );
  }
  if (headDim % 2 !== 0) {
    throw new NnConfigError(
      `decoder: expected head_dim to be even, got ${headDim}${options.head_dim === undefined ? ` (hidden_size ${width} over num_attention_heads ${heads})` : ''}. Columns turn in pairs.`,
    );
  }
  requireFamily(config);
  return config;
}

/** Refuses fields of other families, and lists that lack something for a layer. */
function requireFamily(config: DecoderConfig): void {
  const { model_type: family, num_hidden_layers: numLayers } = config;
  for (const field of FAMILY_FIELDS) {
    const families = familiesWith(field);
    if (config[field] && !families.includes(family)) {
      throw new NnConfigError(
        `decoder: expected no ${field} for ${family}, got ${JSON.stringify(config[field])}. Only ${families.join(' and ')} can have it.`,
      );
    }
  }
  const { ropeScaling: kind } = FAMILIES[family];
  if ((config.rope_scaling?.rope_type ?? kind) !== kind) {
    throw new NnConfigError(
      `decoder: expected rope_scaling of rope_type '${kind}' for ${family}, got '${config.rope_scaling?.rope_type}'.`,
    );
  }
  for (const field of LAYER_FIELDS) {
    const count = config[field]?.length ?? numLayers;
    if (count < numLayers) {
      throw new NnConfigError(
        `decoder: expected ${field} for each of num_hidden_layers (${numLayers}), got ${count}.`,
      );
    }
  }
}

function isRopeScaling(value: unknown): boolean {
  if (value === null || typeof value !== 'object') {
    return value === null;
  }
  const { rope_type: kind, factor, ...band } = value as Record<string, unknown>;
  const { low_freq_factor: low, high_freq_factor: high } = band;
  const isStretched = above(0).holds(factor);
  if (kind === 'linear') {
    return isStretched && Object.keys(band).length === 0;
  }
  const bounds = [low, high, band.original_max_position_embeddings];
  const isBand = bounds.every((bound) => above(0).holds(bound)) && low! < high!;
  return kind === 'llama3' && isStretched && isBand;
}
