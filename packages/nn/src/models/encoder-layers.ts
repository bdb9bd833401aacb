// The layers of an encoder: the sum of three tables, blocks whose norms come after each sum, and
// the pooler. Parameters have the Hub's names.

import {
  type Activation,
  add,
  type Device,
  embedding,
  headsOf,
  reshape,
  ShapeError,
  scaledDotProductAttention,
  slice,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { Dropout } from '../layers/dropout.js';
import { Embedding } from '../layers/embedding.js';
import { LayerNorm } from '../layers/layer-norm.js';
import { Linear } from '../layers/linear.js';
import { Module } from '../module.js';
import type { ModelPartOptions, ParameterInit } from '../parameters/parameter-init.js';
import type { EncoderConfig } from './encoder-config.js';
import type { EncoderOptions } from './encoder-options.js';

/** What the embeddings of an encoder need to know about their tokens. */
export type EncoderPlaces = Pick<EncoderOptions, 'positions' | 'tokenTypes'>;

/**
 * The normalized sum of the rows that three tables have for a token, its position and its type: ids
 * [batch, seq] to [batch, seq, hidden_size].
 */
export class EncoderEmbeddings extends Module<[ids: Tensor, places?: EncoderPlaces], Tensor> {
  /** Its weight is [vocab_size, hidden_size]. */
  readonly wordEmbeddings: Embedding;
  /** Its weight is [max_position_embeddings, hidden_size]. */
  readonly positionEmbeddings: Embedding;
  /** Its weight is [type_vocab_size, hidden_size]. */
  readonly tokenTypeEmbeddings: Embedding;
  readonly layerNorm: LayerNorm;
  readonly dropout: Dropout;
  readonly #positions: number;

  constructor(device: Device, config: EncoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { hidden_size: embeddingDim, initializer_range: std } = config;
    const table = (name: string, numEmbeddings: number) => {
      const options = { numEmbeddings, embeddingDim, std, init: init.at(name) };
      return this.child(name, new Embedding(device, options));
    };
    this.wordEmbeddings = table('word_embeddings', config.vocab_size);
    this.positionEmbeddings = table('position_embeddings', config.max_position_embeddings);
    this.tokenTypeEmbeddings = table('token_type_embeddings', config.type_vocab_size);
    this.layerNorm = this.child('LayerNorm', normOf(device, config, init));
    this.dropout = this.child('dropout', new Dropout(device, { p: config.hidden_dropout_prob }));
    this.#positions = config.max_position_embeddings;
  }

  async forward(ids: Tensor, { positions, tokenTypes }: EncoderPlaces = {}): Promise<Tensor> {
    const seq = ids.shape[1];
    // With explicit positions a row may be longer than the limit, since each text packed in it is
    // shorter.
    const isTooLong = positions === undefined && (seq ?? 0) > this.#positions;
    if (ids.rank !== 2 || seq === undefined || isTooLong) {
      throw new ShapeError(
        `encoder: expected ids [batch, seq] with seq at most ${this.#positions}, got [${ids.shape.join(', ')}].`,
      );
    }
    const { device } = this;
    const places = positions ?? device.tensor(Int32Array.from({ length: seq }, (_, i) => i));
    const types = tokenTypes ?? device.tensor(Int32Array.of(0)); // every token's
    const added = add(
      await this.positionEmbeddings.call(places), // [seq, hidden_size] or [batch, seq, hidden_size]
      await this.tokenTypeEmbeddings.call(types), // [1, hidden_size] or [batch, seq, hidden_size]
    );
    const sum = add(await this.wordEmbeddings.call(ids), added); // [batch, seq, hidden_size]
    return this.dropout.call(await this.layerNorm.call(sum));
  }
}

/**
 * A transformer block, x [batch, seq, hidden_size] to the same shape: attention and a feed-forward
 * layer. The result of each is added to what it worked on, and the sum is normalized.
 */
export class EncoderBlock extends Module<[x: Tensor, places?: EncoderBlockPlaces], Tensor> {
  readonly attention: EncoderAttention;
  readonly intermediate: EncoderIntermediate;
  readonly output: EncoderOutput;

  constructor(device: Device, config: EncoderConfig, { init }: ModelPartOptions) {
    super(device);
    const part = (name: string) => ({ init: init.at(name) });
    const attention = new EncoderAttention(device, config, part('attention'));
    this.attention = this.child('attention', attention);
    const intermediate = new EncoderIntermediate(device, config, part('intermediate'));
    this.intermediate = this.child('intermediate', intermediate);
    const options = { inFeatures: config.intermediate_size, ...part('output') };
    this.output = this.child('output', new EncoderOutput(device, config, options));
  }

  async forward(x: Tensor, places?: EncoderBlockPlaces): Promise<Tensor> {
    const mixed = await this.attention.call(x, places);
    return this.output.call(await this.intermediate.call(mixed), mixed);
  }
}

/** What a block of an encoder needs to know about its tokens. */
export type EncoderBlockPlaces = Pick<EncoderOptions, 'segments'>;

/**
 * Self-attention, its sum with x, and the norm of the sum: x [batch, seq, hidden_size] to the same
 * shape. A token attends to all tokens of its segment, also to those after it.
 */
export class EncoderAttention extends Module<[x: Tensor, places?: EncoderBlockPlaces], Tensor> {
  /** Its weight is [hidden_size, hidden_size], and so are those of key and value. */
  readonly query: Linear;
  readonly key: Linear;
  readonly value: Linear;
  readonly output: EncoderOutput;
  readonly #config: EncoderConfig;

  constructor(device: Device, config: EncoderConfig, { init }: ModelPartOptions) {
    super(device);
    this.#config = config;
    const { hidden_size: width, initializer_range: std } = config;
    const linear = (name: string) => {
      const options = { inFeatures: width, outFeatures: width, std, init: init.at(name) };
      return this.child(name, new Linear(device, options));
    };
    this.query = linear('self.query');
    this.key = linear('self.key');
    this.value = linear('self.value');
    const options = { inFeatures: width, init: init.at('output') };
    this.output = this.child('output', new EncoderOutput(device, config, options));
  }

  async forward(x: Tensor, { segments }: EncoderBlockPlaces = {}): Promise<Tensor> {
    const { num_attention_heads: numHeads, attention_probs_dropout_prob: dropout } = this.#config;
    const heads = async (project: Linear) => headsOf(await project.call(x), { numHeads });
    const attended = scaledDotProductAttention(
      await heads(this.query),
      await heads(this.key),
      await heads(this.value),
      { dropout: this.isTraining ? dropout : 0, ...(segments && { segments }) },
    ); // [batch, seq, hidden_size]
    return this.output.call(attended, x);
  }
}

/** The first map of the feed-forward layer: x [..., hidden_size] to [..., intermediate_size]. */
export class EncoderIntermediate extends Module<[x: Tensor], Tensor> {
  /** Its weight is [intermediate_size, hidden_size]. */
  readonly dense: Linear;
  readonly activation: Activation;

  constructor(device: Device, config: EncoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { hidden_size: inFeatures, intermediate_size: outFeatures } = config;
    const { initializer_range: std } = config;
    const options = { inFeatures, outFeatures, std, init: init.at('dense') };
    this.dense = this.child('dense', new Linear(device, options));
    this.activation = config.hidden_act === 'gelu' ? 'gelu' : 'geluTanh';
  }

  async forward(x: Tensor): Promise<Tensor> {
    return this.dense.call(x, { activation: this.activation });
  }
}

/**
 * The end of either half of a block: LayerNorm(residual + dense(x)), where x is [..., inFeatures]
 * and the residual and the result are [..., hidden_size].
 */
export class EncoderOutput extends Module<[x: Tensor, residual: Tensor], Tensor> {
  /** Its weight is [hidden_size, inFeatures]. */
  readonly dense: Linear;
  readonly layerNorm: LayerNorm;
  readonly dropout: Dropout;

  constructor(
    device: Device,
    config: EncoderConfig,
    { inFeatures, init }: ModelPartOptions & { readonly inFeatures: number },
  ) {
    super(device);
    const { hidden_size: outFeatures, initializer_range: std } = config;
    const options = { inFeatures, outFeatures, std, init: init.at('dense') };
    this.dense = this.child('dense', new Linear(device, options));
    this.layerNorm = this.child('LayerNorm', normOf(device, config, init));
    this.dropout = this.child('dropout', new Dropout(device, { p: config.hidden_dropout_prob }));
  }

  async forward(x: Tensor, residual: Tensor): Promise<Tensor> {
    const sum = this.dropout.isIdle
      ? await this.dense.call(x, { residual })
      : add(residual, await this.dropout.call(await this.dense.call(x)));
    return this.layerNorm.call(sum);
  }
}

/** What the pooler is to compute. */
export type EncoderPooling = Pick<EncoderOptions, 'isPooled' | 'pooledTokens'>;

/**
 * The pooler, which ends an encoder that has one. With `isPooled` it maps x [batch, seq,
 * hidden_size] to tanh(dense(x's first token)) [batch, hidden_size], or to such a row for each of
 * the given tokens, else it gives back x.
 */
export class EncoderPooler extends Module<[x: Tensor, options?: EncoderPooling], Tensor> {
  /** Its weight is [hidden_size, hidden_size]. */
  readonly dense: Linear;

  constructor(device: Device, config: EncoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { hidden_size: width, initializer_range: std } = config;
    const options = { inFeatures: width, outFeatures: width, std, init: init.at('dense') };
    this.dense = this.child('dense', new Linear(device, options));
  }

  async forward(
    x: Tensor,
    { isPooled = false, pooledTokens }: EncoderPooling = {},
  ): Promise<Tensor> {
    if (!isPooled) {
      return x;
    }
    const [batch, , width] = x.shape as [number, number, number];
    const rows =
      pooledTokens === undefined
        ? reshape(slice(x, { axis: 1, start: 0, end: 1 }), [batch, width])
        : embedding(reshape(x, [-1, width]), pooledTokens);
    return tanh(await this.dense.call(rows));
  }
}

function normOf(device: Device, config: EncoderConfig, init: ParameterInit): LayerNorm {
  const { hidden_size: normalizedShape, layer_norm_eps: eps } = config;
  return new LayerNorm(device, { normalizedShape, eps, init });
}
