// Causal self-attention with grouped queries and rotary positions. Parameters have the Hub's names.

import {
  type Device,
  reshape,
  rotaryEmbedding,
  scaledDotProductAttention,
  type Tensor,
} from '@shardweave/tensor-core';
import { Linear } from '../layers/linear.js';
import { RmsNorm } from '../layers/rms-norm.js';
import { Module } from '../module.js';
import type { DecoderConfig } from './decoder-config.js';
import { blockParts, layerParts, normOptions } from './decoder-parts.js';
import { type DecoderPartOptions, RotaryTable } from './rotary-table.js';
import type { RowPlaces } from './token-options.js';

/**
 * Causal self-attention, x [batch, seq, hidden_size] to the same shape: a token attends to itself
 * and to those before it in its segment.
 */
export class DecoderAttention extends Module<[x: Tensor, places?: RowPlaces], Tensor> {
  /** Its weight is [heads * head_dim, hidden_size]. */
  readonly qProj: Linear;
  /** Its weight is [kvHeads * head_dim, hidden_size], and so is that of vProj. */
  readonly kProj: Linear;
  readonly vProj: Linear;
  /** Its weight is [hidden_size, heads * head_dim]. */
  readonly oProj: Linear;
  /**
   * Normalizes each head of the queries by one weight [head_dim]; kNorm does so with the keys. Only
   * Qwen 3 and Gemma 3 have them.
   */
  readonly qNorm: RmsNorm | undefined;
  readonly kNorm: RmsNorm | undefined;
  readonly #config: DecoderConfig;
  /** What turns queries and keys; undefined in a layer without positions. */
  readonly #rotary: RotaryTable | undefined;
  readonly #window: number | undefined;

  constructor(device: Device, config: DecoderConfig, options: DecoderPartOptions) {
    super(device);
    const { init, rotary = new RotaryTable(config), layer = 0 } = options;
    this.#config = config;
    const { hasRotary, window } = layerParts(config, layer);
    this.#rotary = hasRotary ? rotary : undefined;
    this.#window = window;
    const { hidden_size: width, head_dim: headDim, initializer_range: std } = config;
    const { hasQkvBias, hasOutBias, hasHeadNorms } = blockParts(config);
    const qWidth = config.num_attention_heads * headDim;
    const kvWidth = config.num_key_value_heads * headDim;
    const linear = (name: string, sizes: readonly [inFeatures: number, outFeatures: number]) => {
      const [inFeatures, outFeatures] = sizes;
      const bias = name === 'o_proj' ? hasOutBias : hasQkvBias;
      const options = { inFeatures, outFeatures, bias, std, init: init.at(name) };
      return this.child(name, new Linear(device, options));
    };
    this.qProj = linear('q_proj', [width, qWidth]);
    this.kProj = linear('k_proj', [width, kvWidth]);
    this.vProj = linear('v_proj', [width, kvWidth]);
    this.oProj = linear('o_proj', [qWidth, width]);
    const norm = (name: string) => {
      const options = normOptions(config, { init: init.at(name), width: headDim });
      return hasHeadNorms ? this.child(name, new RmsNorm(device, options)) : undefined;
    };
    this.qNorm = norm('q_norm');
    this.kNorm = norm('k_norm');
  }

  async forward(x: Tensor, { segments, positions, cache }: RowPlaces = {}): Promise<Tensor> {
    const [batch, seq] = x.shape as [number, number, number];
    const { head_dim: headDim, num_key_value_heads: kvHeads } = this.#config;
    const { num_attention_heads: numHeads, attention_dropout: dropout } = this.#config;
    const { query_pre_attn_scalar: scalar = headDim } = this.#config;
    const window = this.#window;
    const frequencies = this.#rotary?.on(this.device, window === undefined ? 'full' : 'sliding');
    const places = positions === undefined ? { offset: cache?.length ?? 0 } : { positions };
    const heads = async (project: Linear, count: number): Promise<Tensor> =>
      reshape(await project.call(x), [batch, seq, count, headDim]);
    const turn = (rows: Tensor) =>
      frequencies === undefined ? rows : rotaryEmbedding(rows, { frequencies, ...places });
    const turned = async (rows: Tensor, norm: RmsNorm | undefined): Promise<Tensor> =>
      turn(norm === undefined ? rows : await norm.call(rows));
    const q = await turned(await heads(this.qProj, numHeads), this.qNorm);
    const k = await turned(await heads(this.kProj, kvHeads), this.kNorm);
    const v = await heads(this.vProj, kvHeads); // [batch, seq, kvHeads, headDim]
    const held = cache?.extend(k, v) ?? { keys: k, values: v };
    // Where a cache holds earlier keys, the queries belong to the last rows of the keys.
    const attended = scaledDotProductAttention(q, held.keys, held.values, {
      isCausal: true,
      scale: 1 / Math.sqrt(scalar),
      ...(window !== undefined && { window }),
      dropout: this.isTraining ? dropout : 0,
      ...(segments && { segments }),
    }); // [batch, seq, heads, headDim]
    return this.oProj.call(reshape(attended, [batch, seq, numHeads * headDim]));
  }
}
