// What separates the families of decoders from Llama, as a table: which fields their config.json
// has beyond those of all, and what a block has that no field says. Another family begins here.

/**
 * The architecture: 'llama' for Llama 2 and 3, SmolLM2 and TinyLlama, 'qwen2' for Qwen 2 and 2.5,
 * 'qwen3' for Qwen 3, 'smollm3' for SmolLM3.
 */
export type DecoderFamily = 'llama' | 'qwen2' | 'qwen3' | 'smollm3';

/** The fields of a config.json that not every family has. */
export const FAMILY_FIELDS = ['attention_bias', 'mlp_bias', 'no_rope_layers'] as const;
export type FamilyField = (typeof FAMILY_FIELDS)[number];

/** The fields that have something for each layer, a list of num_hidden_layers. */
export interface LayerFields {
  readonly no_rope_layers?: readonly number[] | undefined;
}

/** What a family has beyond Llama. */
export interface FamilyTraits {
  /** How its classes in transformers begin, such as the Llama of LlamaForCausalLM. */
  readonly classes: string;
  /** Those of FAMILY_FIELDS that it has. */
  readonly fields: readonly FamilyField[];
  /** Its defaults, where they differ from those of the other families. */
  readonly defaults: {
    readonly head_dim?: number;
    readonly rope_theta?: number;
    readonly tie_word_embeddings?: boolean;
  };
  /** The defaults of the fields that have something for each layer. */
  layers(count: number): LayerFields;
  /** Whether q, k and v have biases although no field says so. */
  readonly hasQkvBias: boolean;
  /** Whether each head of queries and keys is normalized before it gets its rotary position. */
  readonly hasHeadNorms: boolean;
  /** Whether its files have Qwen's fields of windows, which mean nothing while those are off. */
  readonly hasIdleWindows: boolean;
}

const LLAMA: FamilyTraits = {
  classes: 'Llama',
  fields: ['attention_bias', 'mlp_bias'],
  defaults: {},
  layers: () => ({}),
  hasQkvBias: false,
  hasHeadNorms: false,
  hasIdleWindows: false,
};

/** How many layers SmolLM3 has from one without positions to the next, where no file says it. */
const NO_ROPE_INTERVAL = 4;

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
    layers: (count) => ({ no_rope_layers: ropeLayers(count, NO_ROPE_INTERVAL) }),
    hasIdleWindows: true,
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

/** A 1 for each layer with rotary positions and a 0 for each interval-th one: 1, 1, 1, 0, 1, ... */
export function ropeLayers(count: number, interval: number): readonly number[] {
  return Array.from({ length: count }, (_, layer) => ((layer + 1) % interval === 0 ? 0 : 1));
}
