// The layers of a decoder before its head: the token table, and blocks.

import { type Device, ShapeError, type Tensor } from '@shardweave/tensor-core';
import { AddRmsNorm } from '../layers/add-rms-norm.js';
import { Embedding } from '../layers/embedding.js';
import { Module } from '../module.js';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import { DecoderAttention } from './decoder-attention.js';
import type { DecoderConfig } from './decoder-config.js';
import { DecoderMlp } from './decoder-mlp.js';
import type { DecoderPartOptions } from './rotary-table.js';
import type { EmbeddingPlaces, RowPlaces } from './token-options.js';

/** The token table: ids [batch, seq] to their rows, [batch, seq, hidden_size]. */
export class DecoderEmbeddings extends Module<[ids: Tensor, places?: EmbeddingPlaces], Tensor> {
  /** Its weight is the token table, [vocab_size, hidden_size]. */
  readonly embedTokens: Embedding;
  readonly #positions: number;

  constructor(device: Device, config: DecoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { vocab_size: numEmbeddings, hidden_size: embeddingDim, initializer_range: std } = config;
    const options = { numEmbeddings, embeddingDim, std, init: init.at('embed_tokens') };
    this.embedTokens = this.child('embed_tokens', new Embedding(device, options));
    this.#positions = config.max_position_embeddings;
  }

  /** The token table, [vocab_size, hidden_size]. */
  get table(): Tensor {
    return this.embedTokens.weight;
  }

  async forward(ids: Tensor, { positions, offset = 0 }: EmbeddingPlaces = {}): Promise<Tensor> {
    const seq = ids.shape[1];
    // With explicit positions a row may be longer than the limit, since each text packed in it is
    // shorter.
    const isTooLong = positions === undefined && offset + (seq ?? 0) > this.#positions;
    if (ids.rank !== 2 || seq === undefined || isTooLong) {
      throw new ShapeError(
        `decoder: expected ids [batch, seq] with seq at most ${this.#positions}, got [${ids.shape.join(', ')}]${offset > 0 ? ` from position ${offset} on` : ''}.`,
      );
    }
    return this.embedTokens.call(ids);
  }
}

/**
 * A transformer block, x [batch, seq, hidden_size] to the same shape: attention and a feed-forward
 * layer. Each works on the normalized sum of what came before, and its result is added to that sum.
 */
export class DecoderBlock extends Module<[x: Tensor, places?: RowPlaces], Tensor> {
  readonly inputLayernorm: AddRmsNorm;
  readonly selfAttn: DecoderAttention;
  readonly postAttentionLayernorm: AddRmsNorm;
  readonly mlp: DecoderMlp;

  constructor(device: Device, config: DecoderConfig, { init, ...layer }: DecoderPartOptions) {
    super(device);
    const norm = { normalizedShape: config.hidden_size, eps: config.rms_norm_eps, init };
    this.inputLayernorm = this.child('input_layernorm', new AddRmsNorm(device, norm));
    const own = { ...layer, init: init.at('self_attn') };
    const attention = new DecoderAttention(device, config, own);
    this.selfAttn = this.child('self_attn', attention);
    const second = new AddRmsNorm(device, norm);
    this.postAttentionLayernorm = this.child('post_attention_layernorm', second);
    this.mlp = this.child('mlp', new DecoderMlp(device, config, { init: init.at('mlp') }));
  }

  async forward(x: Tensor, places?: RowPlaces): Promise<Tensor> {
    const first = await this.inputLayernorm.call(x);
    const mixed = await this.selfAttn.call(first.norm, places);
    const { sum, norm } = await this.postAttentionLayernorm.call(mixed, first.sum);
    return this.mlp.call(norm, sum);
  }
}
