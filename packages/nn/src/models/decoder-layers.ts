// The layers of a decoder before its head: the token table, and blocks.

import { type DType, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { add, type Device, mul, ShapeError, type Tensor } from '@shardweave/tensor-core';
import { AddRmsNorm } from '../layers/add-rms-norm.js';
import { Embedding } from '../layers/embedding.js';
import { RmsNorm } from '../layers/rms-norm.js';
import { Module } from '../module.js';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import { DecoderAttention } from './decoder-attention.js';
import type { DecoderConfig } from './decoder-config.js';
import { DecoderMlp } from './decoder-mlp.js';
import { blockParts, normOptions } from './decoder-parts.js';
import type { DecoderPartOptions } from './rotary-table.js';
import type { EmbeddingPlaces, RowPlaces } from './token-options.js';

/**
 * The token table: ids [batch, seq] to their rows, [batch, seq, hidden_size]. Gemma 3 multiplies
 * them by the root of the width.
 */
export class DecoderEmbeddings extends Module<[ids: Tensor, places?: EmbeddingPlaces], Tensor> {
  /** Its weight is the token table, [vocab_size, hidden_size]. */
  readonly embedTokens: Embedding;
  readonly #positions: number;
  readonly #scale: number | undefined;

  constructor(device: Device, config: DecoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { vocab_size: numEmbeddings, hidden_size: embeddingDim, initializer_range: std } = config;
    const options = { numEmbeddings, embeddingDim, std, init: init.at('embed_tokens') };
    this.embedTokens = this.child('embed_tokens', new Embedding(device, options));
    this.#positions = config.max_position_embeddings;
    this.#scale = blockParts(config).hasScaledTable ? Math.sqrt(embeddingDim) : undefined;
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
    const rows = await this.embedTokens.call(ids);
    return this.#scale === undefined ? rows : mul(rows, roundedTo(rows.dtype, this.#scale));
  }
}

/** A number as the rows' dtype has it, in which transformers keeps the factor of the table. */
function roundedTo(dtype: DType, number: number): number {
  return toF32Array(fromF32Array(Float32Array.of(number), dtype), dtype)[0]!;
}

/**
 * A transformer block, x [batch, seq, hidden_size] to the same shape: attention and a feed-forward
 * layer. Each works on the normalized sum of what came before, and its result is added to that sum,
 * in Gemma 3 after a norm of its own.
 */
export class DecoderBlock extends Module<[x: Tensor, places?: RowPlaces], Tensor> {
  readonly inputLayernorm: AddRmsNorm;
  readonly selfAttn: DecoderAttention;
  /** Normalizes what attention gives, before it is added. Only Gemma 3 has it. */
  readonly attentionNorm: RmsNorm | undefined;
  /** Adds attention's result, and normalizes the sum for the feed-forward layer. */
  readonly mlpInputNorm: AddRmsNorm;
  readonly mlp: DecoderMlp;
  /** Normalizes what the feed-forward layer gives, before it is added. Only Gemma 3 has it. */
  readonly mlpNorm: RmsNorm | undefined;

  constructor(device: Device, config: DecoderConfig, { init, ...layer }: DecoderPartOptions) {
    super(device);
    const { hasBranchNorms } = blockParts(config);
    const norm = normOptions(config, { init });
    const branchNorm = (name: string) =>
      hasBranchNorms ? this.child(name, new RmsNorm(device, norm)) : undefined;
    this.inputLayernorm = this.child('input_layernorm', new AddRmsNorm(device, norm));
    const own = { ...layer, init: init.at('self_attn') };
    const attention = new DecoderAttention(device, config, own);
    this.selfAttn = this.child('self_attn', attention);
    // In Gemma 3 this is the name of the norm behind attention, and the next one has another.
    const after = 'post_attention_layernorm';
    this.attentionNorm = branchNorm(after);
    const second = new AddRmsNorm(device, norm);
    this.mlpInputNorm = this.child(hasBranchNorms ? 'pre_feedforward_layernorm' : after, second);
    this.mlp = this.child('mlp', new DecoderMlp(device, config, { init: init.at('mlp') }));
    this.mlpNorm = branchNorm('post_feedforward_layernorm');
  }

  async forward(x: Tensor, places?: RowPlaces): Promise<Tensor> {
    const first = await this.inputLayernorm.call(x);
    const attended = await this.selfAttn.call(first.norm, places);
    const mixed = (await this.attentionNorm?.call(attended)) ?? attended;
    const { sum, norm } = await this.mlpInputNorm.call(mixed, first.sum);
    return this.mlpNorm === undefined
      ? this.mlp.call(norm, sum)
      : add(sum, await this.mlpNorm.call(await this.mlp.call(norm)));
  }
}
