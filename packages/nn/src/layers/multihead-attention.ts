// Causal self-attention as in GPT-2: one layer projects to queries, keys and values together, and
// parameters have GPT-2's names.

import {
  causalSelfAttention,
  type Device,
  reshape,
  scaledDotProductAttention,
  split,
  type Tensor,
} from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  INIT,
  type OptionRules,
  optional,
  PROBABILITY,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { Module } from '../module.js';
import { ParameterInit } from '../parameters/parameter-init.js';
import { Conv1D } from './conv1d.js';
import { Dropout } from './dropout.js';
import type { LayerCache } from './key-value-cache.js';

/** Options of MultiheadAttention, the causal self-attention of GPT-2. */
export interface MultiheadAttentionOptions {
  readonly embedDim: number;
  /** The number of heads. It divides embedDim, and embedDim / numHeads is even. */
  readonly numHeads: number;
  /** The probability of dropping an attention weight in training. Default 0. */
  readonly dropout?: number;
  /** The probability of dropping an element of the result in training. Default 0. */
  readonly residDropout?: number;
  /** The standard deviation of cAttn's initial weight. Default 0.02. */
  readonly std?: number;
  /** The standard deviation of cProj's initial weight. Default `std`. */
  readonly projStd?: number;
  readonly init?: ParameterInit;
}

const RULES: OptionRules<MultiheadAttentionOptions> = {
  embedDim: whole(1),
  numHeads: whole(1),
  dropout: optional(PROBABILITY),
  residDropout: optional(PROBABILITY),
  std: optional(atLeast(0)),
  projStd: optional(atLeast(0)),
  init: INIT,
};

/**
 * Where the tokens of a call stand: which document of a packed row each belongs to, and which
 * cached tokens come before them.
 */
export interface MultiheadAttentionPlaces {
  /**
   * Numbers of documents, u32 [batch, seq]. A token attends only to tokens with its own number. Two
   * documents in a row of five tokens are 0, 0, 0, 1, 1.
   */
  readonly segments?: Tensor | undefined;
  /** Keys and values of the tokens before these. A call with a cache has one row. */
  readonly cache?: LayerCache | undefined;
}

/**
 * Causal self-attention, x [batch, seq, embedDim] to the same shape: position t attends to those
 * up to t.
 */
export class MultiheadAttention extends Module<
  [x: Tensor, places?: MultiheadAttentionPlaces],
  Tensor
> {
  readonly numHeads: number;
  readonly dropout: number;
  /** Projects to queries, keys and values at once; its weight is [embedDim, 3 * embedDim]. */
  readonly cAttn: Conv1D;
  /** Projects the heads' results; its weight is [embedDim, embedDim]. */
  readonly cProj: Conv1D;
  readonly residDropout: Dropout;

  constructor(device: Device, options: MultiheadAttentionOptions) {
    super(device);
    checkOptions('MultiheadAttention', options, RULES);
    const { embedDim: dim, numHeads, std = 0.02, projStd = std } = options;
    const { init = ParameterInit.next(device) } = options;
    if ((dim / numHeads) % 2 !== 0) {
      throw new NnConfigError(
        `MultiheadAttention: expected embedDim to be numHeads times an even number, got embedDim ${dim}, numHeads ${numHeads}.`,
      );
    }
    this.numHeads = numHeads;
    this.dropout = options.dropout ?? 0;
    const projection = (name: string, outFeatures: number, weightStd: number) =>
      this.child(
        name,
        new Conv1D(device, { inFeatures: dim, outFeatures, std: weightStd, init: init.at(name) }),
      );
    this.cAttn = projection('c_attn', 3 * dim, std);
    this.cProj = projection('c_proj', dim, projStd);
    this.residDropout = this.child(
      'resid_dropout',
      new Dropout(device, { p: options.residDropout ?? 0 }),
    );
  }

  async forward(x: Tensor, { segments, cache }: MultiheadAttentionPlaces = {}): Promise<Tensor> {
    const { numHeads } = this;
    const qkv = await this.cAttn.call(x); // [batch, seq, 3 * dim]
    const options = {
      dropout: this.isTraining ? this.dropout : 0,
      ...(segments === undefined ? {} : { segments }),
    };
    const mixed =
      cache === undefined
        ? causalSelfAttention(qkv, { numHeads, ...options })
        : this.#attendHeld(qkv, cache, options); // [batch, seq, dim]
    const out = await this.cProj.call(mixed);
    return this.residDropout.call(out);
  }

  #attendHeld(
    qkv: Tensor,
    cache: LayerCache,
    options: { readonly dropout: number; readonly segments?: Tensor },
  ): Tensor {
    const { numHeads } = this;
    const [batch, seq, width] = qkv.shape as [number, number, number];
    const dim = width / 3;
    const heads = [batch, seq, numHeads, dim / numHeads];
    const [q, k, v] = split(qkv, { axis: 2, lengths: [dim, dim, dim] }).map((part) =>
      reshape(part, heads),
    ) as [Tensor, Tensor, Tensor];
    const held = cache.extend(k, v);
    const mixed = scaledDotProductAttention(q, held.keys, held.values, {
      isCausal: true,
      ...options,
    });
    return reshape(mixed, [batch, seq, dim]);
  }
}
