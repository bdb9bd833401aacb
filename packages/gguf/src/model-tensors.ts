// Plans llama.cpp's tensors from those of a model: the name of each, and the order of its rows.

import type { DecoderConfig, Gpt2Config, ModelConfig } from '@shardweave/nn';
import { GGUF_FAMILIES } from './families.js';
import type { RowPlan } from './tensor-rows.js';

/** One tensor of the file, and where it comes from. */
export interface TensorPlan {
  /** The name in the file. */
  readonly name: string;
  /** The name in the model. */
  readonly source: string;
  /** The shape in the file. The source has the same shape, or the two dimensions swapped. */
  readonly shape: readonly number[];
  readonly rows: RowPlan;
  /** Whether llama.cpp reads it in f32 whatever type the matrices have. */
  readonly isAlwaysF32: boolean;
  /** Whether its rows are looked up, by a token or a position, and not multiplied. */
  readonly isTable: boolean;
  /** What the file's numbers have beyond those of the model. Only vectors have something. */
  readonly offset: number;
}

/** The plans of all tensors of the model, in the order of the file. */
export function tensorPlans(config: ModelConfig): readonly TensorPlan[] {
  return config.model_type === 'gpt2' ? gpt2Plans(config) : decoderPlans(config);
}

type Options = Partial<Pick<RowPlan, 'rowAt' | 'isTransposed'>> & {
  readonly isAlwaysF32?: boolean;
  readonly isTable?: boolean;
  readonly offset?: number;
};

/** A plan with the rows that follow from its shape. */
export function plan(
  name: string,
  source: string,
  {
    shape,
    isAlwaysF32 = false,
    isTable = false,
    offset = 0,
    ...rows
  }: Options & { readonly shape: readonly number[] },
): TensorPlan {
  const [first, second] = shape as [number, number?];
  // A vector whose elements move is a column; any other is a row, which is read in one go.
  const isColumn = second === undefined && rows.rowAt !== undefined;
  const sizes = isColumn
    ? { rows: first, columns: 1 }
    : { rows: second === undefined ? 1 : first, columns: second ?? first };
  return { name, source, shape, rows: { ...sizes, ...rows }, isAlwaysF32, isTable, offset };
}

function decoderPlans(config: DecoderConfig): TensorPlan[] {
  const { hidden_size: width, intermediate_size: inner, head_dim: headDim } = config;
  const { model_type: family, attention_bias: hasBias, mlp_bias: hasMlpBias } = config;
  const qWidth = config.num_attention_heads * headDim;
  const kvWidth = config.num_key_value_heads * headDim;
  const { turnsNeighbors, hasHeadNorms, hasBranchNorms, normOffset } = GGUF_FAMILIES[family];
  const turned: Options = turnsNeighbors ? { rowAt: (row) => halvesRow(row, headDim) } : {};
  const norm = (name: string, source: string, size = width) =>
    plan(`${name}.weight`, `model.${source}.weight`, { shape: [size], offset: normOffset });
  const hasQkvBias = family === 'qwen2' || hasBias;
  const block = (index: number): TensorPlan[] => {
    const from = `model.layers.${index}`;
    const to = `blk.${index}`;
    const matrix = (
      name: string,
      source: string,
      options: Options & { readonly shape: readonly [number, number]; readonly hasBias: boolean },
    ) => {
      const { hasBias: isBiased, shape, ...rows } = options;
      const weight = plan(`${to}.${name}.weight`, `${from}.${source}.weight`, { ...rows, shape });
      const bias = { ...rows, shape: [shape[0]] };
      return isBiased
        ? [weight, plan(`${to}.${name}.bias`, `${from}.${source}.bias`, bias)]
        : [weight];
    };
    const ownNorm = (name: string, source: string, size = width) =>
      norm(`${to}.${name}`, `layers.${index}.${source}`, size);
    const q = { ...turned, shape: [qWidth, width], hasBias: hasQkvBias } as const;
    const k = { ...turned, shape: [kvWidth, width], hasBias: hasQkvBias } as const;
    const v = { shape: [kvWidth, width], hasBias: hasQkvBias } as const;
    const up = { shape: [inner, width], hasBias: hasMlpBias } as const;
    return [
      ownNorm('attn_norm', 'input_layernorm'),
      ...matrix('attn_q', 'self_attn.q_proj', q),
      ...matrix('attn_k', 'self_attn.k_proj', k),
      ...matrix('attn_v', 'self_attn.v_proj', v),
      ...matrix('attn_output', 'self_attn.o_proj', { shape: [width, qWidth], hasBias }),
      ...(hasHeadNorms
        ? [
            ownNorm('attn_q_norm', 'self_attn.q_norm', headDim),
            ownNorm('attn_k_norm', 'self_attn.k_norm', headDim),
          ]
        : []),
      ...(hasBranchNorms
        ? [
            ownNorm('post_attention_norm', 'post_attention_layernorm'),
            ownNorm('ffn_norm', 'pre_feedforward_layernorm'),
            ownNorm('post_ffw_norm', 'post_feedforward_layernorm'),
          ]
        : [ownNorm('ffn_norm', 'post_attention_layernorm')]),
      ...matrix('ffn_gate', 'mlp.gate_proj', up),
      ...matrix('ffn_up', 'mlp.up_proj', up),
      ...matrix('ffn_down', 'mlp.down_proj', { shape: [width, inner], hasBias: hasMlpBias }),
    ];
  };
  const table = [config.vocab_size, width];
  return [
    plan('token_embd.weight', 'model.embed_tokens.weight', { shape: table, isTable: true }),
    ...range(config.num_hidden_layers).flatMap(block),
    norm('output_norm', 'norm'),
    ...(config.tie_word_embeddings
      ? []
      : [plan('output.weight', 'lm_head.weight', { shape: table })]),
  ];
}

/**
 * The row of the source that belongs at `row` of the file: the source has the two halves of each
 * head one after the other, and the file alternates between them: 0, d/2, 1, d/2 + 1, ...
 */
function halvesRow(row: number, headDim: number): number {
  const column = row % headDim;
  return row - column + (column % 2) * (headDim / 2) + Math.floor(column / 2);
}

/** GPT-2's matrices are [in, out], and llama.cpp's are [out, in]. */
function gpt2Plans(config: Gpt2Config): TensorPlan[] {
  const { n_embd: width, n_positions: positions } = config;
  const inner = config.n_inner ?? 4 * width;
  const both = (
    name: string,
    source: string,
    { shape, ...options }: Options & { readonly shape: readonly number[] },
  ) => [
    plan(`${name}.weight`, `transformer.${source}.weight`, { shape, ...options }),
    plan(`${name}.bias`, `transformer.${source}.bias`, { shape: [shape[0]!] }),
  ];
  const block = (index: number): TensorPlan[] => {
    const from = `h.${index}`;
    const to = `blk.${index}`;
    const matrix = (shape: readonly [number, number]) => ({ shape, isTransposed: true });
    return [
      ...both(`${to}.attn_norm`, `${from}.ln_1`, { shape: [width] }),
      ...both(`${to}.attn_qkv`, `${from}.attn.c_attn`, matrix([3 * width, width])),
      ...both(`${to}.attn_output`, `${from}.attn.c_proj`, matrix([width, width])),
      ...both(`${to}.ffn_norm`, `${from}.ln_2`, { shape: [width] }),
      ...both(`${to}.ffn_up`, `${from}.mlp.c_fc`, matrix([inner, width])),
      ...both(`${to}.ffn_down`, `${from}.mlp.c_proj`, matrix([width, inner])),
    ];
  };
  return [
    plan('token_embd.weight', 'transformer.wte.weight', {
      shape: [config.vocab_size, width],
      isTable: true,
    }),
    plan('position_embd.weight', 'transformer.wpe.weight', {
      shape: [positions, width],
      isAlwaysF32: true,
      isTable: true,
    }),
    ...range(config.n_layer).flatMap(block),
    ...both('output_norm', 'ln_f', { shape: [width] }),
  ];
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, index) => index);
}
