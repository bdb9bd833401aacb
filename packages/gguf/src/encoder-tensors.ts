// Plans llama.cpp's tensors from those of an encoder. It has no pooler: its rows are pooled.

import type { EncoderConfig } from '@shardweave/nn/embedding';
import { plan, type TensorPlan } from './model-tensors.js';

/** The pooler, which files may have and llama.cpp's model of the name does not. */
export const POOLER = /^pooler\./;

/** The plans of all tensors of an encoder, in the order of the file. */
export function encoderPlans(config: EncoderConfig): readonly TensorPlan[] {
  const { hidden_size: width, intermediate_size: inner } = config;
  const both = (name: string, source: string, shape: readonly number[]) => [
    plan(`${name}.weight`, `${source}.weight`, { shape }),
    plan(`${name}.bias`, `${source}.bias`, { shape: shape.slice(0, 1) }),
  ];
  const table = (name: string, of: string, rows: number, isAlwaysF32: boolean) =>
    plan(`${name}.weight`, `embeddings.${of}_embeddings.weight`, {
      ...{ shape: [rows, width], isAlwaysF32, isTable: true },
    });
  const block = (index: number): TensorPlan[] => {
    const from = `encoder.layer.${index}`;
    const to = `blk.${index}`;
    const square = [width, width];
    return [
      ...both(`${to}.attn_q`, `${from}.attention.self.query`, square),
      ...both(`${to}.attn_k`, `${from}.attention.self.key`, square),
      ...both(`${to}.attn_v`, `${from}.attention.self.value`, square),
      ...both(`${to}.attn_output`, `${from}.attention.output.dense`, square),
      ...both(`${to}.attn_output_norm`, `${from}.attention.output.LayerNorm`, [width]),
      ...both(`${to}.ffn_up`, `${from}.intermediate.dense`, [inner, width]),
      ...both(`${to}.ffn_down`, `${from}.output.dense`, [width, inner]),
      ...both(`${to}.layer_output_norm`, `${from}.output.LayerNorm`, [width]),
    ];
  };
  return [
    table('token_embd', 'word', config.vocab_size, false),
    table('position_embd', 'position', config.max_position_embeddings, true),
    table('token_types', 'token_type', config.type_vocab_size, true),
    ...both('token_embd_norm', 'embeddings.LayerNorm', [width]),
    ...Array.from({ length: config.num_hidden_layers }, (_, index) => block(index)).flat(),
  ];
}
