// What separates the families of decoders from Llama, as a table: which fields their config.json
// has beyond those of all, and what a block has that no field says. Another family begins here.

/**
 * The architecture: 'llama' for Llama 2 and 3, SmolLM2 and TinyLlama, 'qwen2' for Qwen 2 and 2.5,
 * 'qwen3' for Qwen 3, 'smollm3' for SmolLM3, 'gemma3_text' for Gemma 3 without images.
 */
export type DecoderFamily = 'llama' | 'qwen2' | 'qwen3' | 'smollm3' | 'gemma3_text';

/** The fields of a config.json that not every family has. */
export const FAMILY_FIELDS = [
  ...(['attention_bias', 'mlp_bias', 'no_rope_layers', 'layer_types'] as const),
  ...(['sliding_window', 'rope_local_base_freq', 'query_pre_attn_scalar'] as const),
] as const;
export type FamilyField = (typeof FAMILY_FIELDS)[number];

/** How a layer attends: to the tokens of its window, or to all before its own. */
export type LayerType = 'sliding_attention' | 'full_attention';

/** The fields that have something for each layer. */
export interface LayerFields {
  /**
   * A 1 for each layer whose queries and keys get rotary positions, and a 0 for one without. Only
   * SmolLM3 has it: 1, 1, 1, 0, again and again.
   */
  readonly no_rope_layers?: readonly number[] | undefined;
  /**
   * How each layer attends. Only Gemma 3 has it: five sliding ones and a full one, again and again.
   * The sliding ones have rotary frequencies of their own.
   */
  readonly layer_types?: readonly LayerType[] | undefined;
}

/** How layers differ in a family. */
interface LayerPattern {
  /** The names under which a file may say the distance of the layers that differ. */
  readonly intervalFields: readonly string[];
  /** The fields for `count` layers of which each interval-th differs. */
  of(count: number, interval?: number): LayerFields;
}

/** What a family has beyond Llama. */
export interface FamilyTraits {
  /** How its classes in transformers begin, such as the Llama of LlamaForCausalLM. */
  readonly classes: string;
  /** Those of FAMILY_FIELDS that it has. */
  readonly fields: readonly FamilyField[];
  /** Its defaults, where they differ from those of the other families. */
  readonly defaults: Readonly<Partial<Record<NumberField, number>>> & {
    readonly tie_word_embeddings?: boolean;
  };
  /** How its layers differ; undefined where all are alike. */
  readonly pattern: LayerPattern | undefined;
  /** What its files say of the gate of its feed-forward layers, under the family's own name. */
  readonly activation: Readonly<Record<string, string>>;
  readonly gate: 'silu' | 'geluTanh';
  /** The kind of rope_scaling that it may have. */
  readonly ropeScaling: 'llama3' | 'linear';
  /** Whether q, k and v have biases although no field says so. */
  readonly hasQkvBias: boolean;
  /** Whether each head of queries and keys is normalized before it gets its rotary position. */
  readonly hasHeadNorms: boolean;
  /** Whether what attention and the feed-forward layer give is normalized before it is added. */
  readonly hasBranchNorms: boolean;
  /** Whether the weights of norms are stored as their differences from one. */
  readonly hasOffsetNorms: boolean;
  /** Whether rows of the token table are multiplied by the root of the width. */
  readonly hasScaledTable: boolean;
  /** Whether its files have Qwen's fields of windows, which mean nothing while those are off. */
  readonly hasIdleWindows: boolean;
}

type NumberField =
  | 'head_dim'
  | 'num_key_value_heads'
  | 'rope_theta'
  | 'rope_local_base_freq'
  | 'sliding_window'
  | 'query_pre_attn_scalar';

const LLAMA: FamilyTraits = {
  classes: 'Llama',
  fields: ['attention_bias', 'mlp_bias'],
  defaults: {},
  pattern: undefined,
  activation: { hidden_act: 'silu' },
  gate: 'silu',
  ropeScaling: 'llama3',
  hasQkvBias: false,
  hasHeadNorms: false,
  hasBranchNorms: false,
  hasOffsetNorms: false,
  hasScaledTable: false,
  hasIdleWindows: false,
};

export const FAMILIES: Readonly<Record<DecoderFamily, FamilyTraits>> = {
  llama: LLAMA,
  qwen2: { ...LLAMA, classes: 'Qwen2', fields: [], hasQkvBias: true, hasIdleWindows: true },
  qwen3: {
    ...LLAMA,
    classes: 'Qwen3',
    fields: ['attention_bias'],
    defaults: { head_dim: 128 }, // whatever its width and its number of heads
    hasHeadNorms: true,
    hasIdleWindows: true,
  },
  smollm3: {
    ...LLAMA,
    classes: 'SmolLM3',
    fields: ['attention_bias', 'mlp_bias', 'no_rope_layers'],
    defaults: { rope_theta: 2_000_000, tie_word_embeddings: true },
    pattern: {
      intervalFields: ['no_rope_layer_interval'],
      of: (count, interval = 4) => ({ no_rope_layers: layersWith(count, [interval, 0, 1]) }),
    },
    hasIdleWindows: true,
  },
  gemma3_text: {
    ...LLAMA,
    classes: 'Gemma3',
    fields: [
      ...(['attention_bias', 'layer_types', 'sliding_window'] as const),
      ...(['rope_local_base_freq', 'query_pre_attn_scalar'] as const),
    ],
    defaults: {
      ...{ head_dim: 256, num_key_value_heads: 4, tie_word_embeddings: true },
      ...{ rope_theta: 1_000_000, rope_local_base_freq: 10_000 },
      ...{ sliding_window: 4096, query_pre_attn_scalar: 256 },
    },
    pattern: {
      intervalFields: ['sliding_window_pattern', '_sliding_window_pattern'],
      of: (count, interval = 6) => ({
        layer_types: layersWith(count, [interval, 'full_attention', 'sliding_attention']),
      }),
    },
    activation: { hidden_activation: 'gelu_pytorch_tanh' },
    gate: 'geluTanh',
    ropeScaling: 'linear',
    hasHeadNorms: true,
    hasBranchNorms: true,
    hasOffsetNorms: true,
    hasScaledTable: true,
  },
};

/** The names of all families. */
export const FAMILY_NAMES = Object.keys(FAMILIES) as readonly DecoderFamily[];

/** The families that have a field. */
export function familiesWith(field: FamilyField): readonly DecoderFamily[] {
  return FAMILY_NAMES.filter((name) => FAMILIES[name].fields.includes(field));
}

/** Whether a field of a config.json is one of other families. */
export function isForeign(family: DecoderFamily, name: string): boolean {
  const field = FAMILY_FIELDS.find((known) => known === name);
  return field !== undefined && !FAMILIES[family].fields.includes(field);
}

/** `own` for each interval-th of `count` layers and `other` for the rest: 1, 1, 1, 0, 1, ... */
function layersWith<T>(count: number, [interval, own, other]: readonly [number, T, T]): T[] {
  return Array.from({ length: count }, (_, layer) => ((layer + 1) % interval === 0 ? own : other));
}
