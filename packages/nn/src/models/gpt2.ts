// GPT-2 (Radford et al., 2019), with the Hub's names.

import {
  type Activation,
  add,
  type Device,
  ShapeError,
  type Tensor,
} from '@shardweave/tensor-core';
import { AddLayerNorm } from '../layers/add-layer-norm.js';
import { Conv1D } from '../layers/conv1d.js';
import { Dropout } from '../layers/dropout.js';
import { Embedding } from '../layers/embedding.js';
import { LayerNorm } from '../layers/layer-norm.js';
import { MultiheadAttention } from '../layers/multihead-attention.js';
import { Module } from '../module.js';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import { type Gpt2Config, resolveGpt2Config } from './gpt2-config.js';
import { LanguageHead } from './language-head.js';
import { LanguageModel, type LanguageModelOptions } from './language-model.js';
import type { EmbeddingPlaces, RowPlaces } from './token-options.js';

/**
 * GPT-2 (Radford et al., 2019). A call maps ids [batch, seq] to logits [batch, seq, vocab_size] or,
 * where targets are given, to the loss of each token, f32 [batch, seq]. The head is tied to the
 * token table. Parameters have the Hub's names and shapes.
 */
export class Gpt2 extends LanguageModel<Gpt2Config> {
  /** @throws {NnConfigError} naming the field that cannot work */
  constructor(
    device: Device,
    options: Partial<Gpt2Config> = {},
    modelOptions: LanguageModelOptions = {},
  ) {
    const config = resolveGpt2Config(options);
    const { n_embd: normalizedShape, layer_norm_epsilon: eps } = config;
    super(
      device,
      {
        config,
        numBlocks: config.n_layer,
        paths: { embeddings: 'transformer', blocks: 'transformer.h', head: 'transformer' },
        embeddings: (init) => new Gpt2Embeddings(device, config, { init }),
        block: (init) => new Gpt2Block(device, config, { init }),
        head: (init, table) =>
          new LanguageHead(device, {
            norm: ['ln_f', new LayerNorm(device, { normalizedShape, eps, init })],
            weight: { name: 'wte.weight', table },
          }),
      },
      modelOptions,
    );
  }
}

/**
 * The sum of token and position embeddings: ids [batch, seq] to [batch, seq, n_embd]. A row has at
 * most n_positions tokens, also where positions are given.
 */
export class Gpt2Embeddings extends Module<[ids: Tensor, places?: EmbeddingPlaces], Tensor> {
  /** Its weight is [vocab_size, n_embd]. */
  readonly wte: Embedding;
  /** Its weight is [n_positions, n_embd]. */
  readonly wpe: Embedding;
  readonly drop: Dropout;
  readonly #positions: number;

  constructor(device: Device, config: Gpt2Config, { init }: ModelPartOptions) {
    super(device);
    const { n_embd: embeddingDim, initializer_range: std } = config;
    const table = (name: string, numEmbeddings: number) =>
      this.child(
        name,
        new Embedding(device, { numEmbeddings, embeddingDim, std, init: init.at(name) }),
      );
    this.wte = table('wte', config.vocab_size);
    this.wpe = table('wpe', config.n_positions);
    this.drop = this.child('drop', new Dropout(device, { p: config.embd_pdrop }));
    this.#positions = config.n_positions;
  }

  /** The token table, [vocab_size, n_embd], which is the head's weight too. */
  get table(): Tensor {
    return this.wte.weight;
  }

  async forward(ids: Tensor, { positions, offset = 0 }: EmbeddingPlaces = {}): Promise<Tensor> {
    const seq = ids.shape[1];
    if (ids.rank !== 2 || seq === undefined || offset + seq > this.#positions) {
      throw new ShapeError(
        `gpt2: expected ids [batch, seq] with seq at most ${this.#positions}, got [${ids.shape.join(', ')}]${offset > 0 ? ` from position ${offset} on` : ''}.`,
      );
    }
    const places =
      positions ?? this.device.tensor(Int32Array.from({ length: seq }, (_, i) => offset + i));
    const tokens = await this.wte.call(ids); // [batch, seq, n_embd]
    const added = await this.wpe.call(places); // [seq, n_embd], with positions [batch, seq, n_embd]
    return this.drop.call(add(tokens, added));
  }
}

/**
 * A transformer block, x [batch, seq, n_embd] to the same shape: attention and a feed-forward
 * layer. Each works on the normalized sum of what came before, and its result is added to that sum.
 */
export class Gpt2Block extends Module<[x: Tensor, places?: RowPlaces], Tensor> {
  readonly ln1: AddLayerNorm;
  readonly attn: MultiheadAttention;
  readonly ln2: AddLayerNorm;
  readonly mlp: Gpt2Mlp;

  constructor(device: Device, config: Gpt2Config, { init }: ModelPartOptions) {
    super(device);
    const { n_embd: dim, layer_norm_epsilon: eps, initializer_range: std } = config;
    this.ln1 = this.child('ln_1', new AddLayerNorm(device, { normalizedShape: dim, eps, init }));
    this.attn = this.child(
      'attn',
      new MultiheadAttention(device, {
        embedDim: dim,
        numHeads: config.n_head,
        dropout: config.attn_pdrop,
        residDropout: config.resid_pdrop,
        std,
        projStd: residualStd(config),
        init: init.at('attn'),
      }),
    );
    this.ln2 = this.child('ln_2', new AddLayerNorm(device, { normalizedShape: dim, eps, init }));
    this.mlp = this.child('mlp', new Gpt2Mlp(device, config, { init: init.at('mlp') }));
  }

  async forward(x: Tensor, places: RowPlaces = {}): Promise<Tensor> {
    const first = await this.ln1.call(x);
    const mixed = await this.attn.call(first.norm, places);
    const { sum, norm } = await this.ln2.call(mixed, first.sum);
    return this.mlp.call(norm, sum);
  }
}

/**
 * The feed-forward layer of x plus the residual, both [..., n_embd]; the result has their shape.
 */
export class Gpt2Mlp extends Module<[x: Tensor, residual: Tensor], Tensor> {
  /** Its weight is [n_embd, n_inner]. */
  readonly cFc: Conv1D;
  readonly activation: Activation;
  /** Its weight is [n_inner, n_embd]. */
  readonly cProj: Conv1D;
  readonly dropout: Dropout;

  constructor(device: Device, config: Gpt2Config, { init }: ModelPartOptions) {
    super(device);
    const { n_embd: dim, initializer_range: std } = config;
    const inner = config.n_inner ?? 4 * dim;
    const map = (name: string, inFeatures: number, outFeatures: number, weightStd: number) =>
      this.child(
        name,
        new Conv1D(device, { inFeatures, outFeatures, std: weightStd, init: init.at(name) }),
      );
    this.cFc = map('c_fc', dim, inner, std);
    this.activation = config.activation_function === 'gelu_new' ? 'geluTanh' : 'gelu';
    this.cProj = map('c_proj', inner, dim, residualStd(config));
    this.dropout = this.child('dropout', new Dropout(device, { p: config.resid_pdrop }));
  }

  async forward(x: Tensor, residual: Tensor): Promise<Tensor> {
    const hidden = await this.cFc.call(x, { activation: this.activation }); // [..., n_inner]
    return this.dropout.isIdle
      ? this.cProj.call(hidden, { residual })
      : add(residual, await this.dropout.call(await this.cProj.call(hidden)));
  }
}

/**
 * The standard deviation of a block's two output projections. Each block adds two results to the
 * residual, so 1 / sqrt(2 * n_layer) keeps the size of their sum independent of the depth.
 */
function residualStd(config: Gpt2Config): number {
  return config.initializer_range / Math.sqrt(2 * config.n_layer);
}
