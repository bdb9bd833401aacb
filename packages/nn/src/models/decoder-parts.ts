// What the parts of a decoder are by its configuration: biases, norms and windows, and how many
// values all of them have.

import type { RmsNormLayerOptions } from '../layers/rms-norm.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import type { DecoderConfig } from './decoder-config.js';
import { FAMILIES, type FamilyTraits } from './decoder-families.js';

/** What the blocks of a configuration have: the traits of its family, and biases by its fields. */
export interface BlockParts extends FamilyTraits {
  readonly hasOutBias: boolean;
  readonly hasMlpBias: boolean;
}

export function blockParts(config: DecoderConfig): BlockParts {
  const { attention_bias: hasBias } = config;
  const traits = FAMILIES[config.model_type];
  return {
    ...traits,
    hasQkvBias: traits.hasQkvBias || hasBias,
    hasOutBias: hasBias,
    hasMlpBias: config.mlp_bias,
  };
}

/** The options of a norm of rows of the model's width, or of another one. */
export function normOptions(
  config: DecoderConfig,
  { init, width = config.hidden_size }: { readonly init: ParameterInit; readonly width?: number },
): RmsNormLayerOptions {
  const { hasOffsetNorms: isOffset } = FAMILIES[config.model_type];
  return { normalizedShape: width, eps: config.rms_norm_eps, isOffset, init };
}

/** What separates a layer of a model from the others. */
export function layerParts(
  config: DecoderConfig,
  layer: number,
): {
  /** Whether its queries and keys get rotary positions. */
  readonly hasRotary: boolean;
  /** How many tokens it sees, the own one too; undefined: all before it. */
  readonly window: number | undefined;
} {
  const isSliding = config.layer_types?.[layer] === 'sliding_attention';
  return {
    hasRotary: config.no_rope_layers?.[layer] !== 0,
    window: isSliding ? config.sliding_window : undefined,
  };
}

/** The number of trainable values of a model. A tied head counts once. */
export function decoderParameterCount(config: DecoderConfig): number {
  const { hidden_size: width, intermediate_size: inner, head_dim: headDim } = config;
  const { hasQkvBias, hasOutBias, hasMlpBias, hasHeadNorms, hasBranchNorms } = blockParts(config);
  const qWidth = config.num_attention_heads * headDim;
  const kvWidth = config.num_key_value_heads * headDim;
  const biases =
    (hasQkvBias ? qWidth + 2 * kvWidth : 0) +
    (hasOutBias ? width : 0) +
    (hasMlpBias ? 2 * inner + width : 0);
  const norms = (hasBranchNorms ? 4 : 2) * width + (hasHeadNorms ? 2 * headDim : 0);
  const block = width * (2 * qWidth + 2 * kvWidth + 3 * inner) + biases + norms;
  const tables = config.vocab_size * width * (config.tie_word_embeddings ? 1 : 2);
  return tables + config.num_hidden_layers * block + width;
}
