// Causal self-attention with packed projections, in GPT-2's layout and names.

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
import type { LayerCache } from '../generation/key-value-cache.js';
import { Module } from '../module.js';
import { ParameterInit } from '../parameter-init.js';
import { Conv1D } from './conv1d.js';
import { Dropout } from './dropout.js';

/** Options of MultiheadAttention, the causal self-attention of GPT-2. */
export interface MultiheadAttentionOptions {
  readonly dim: number;
  /** Divides dim; dim / numHeads is even. */
  readonly numHeads: number;
  /** Probability of dropping an attention weight. Default 0. */
  readonly attnDropout?: number;
  /** Probability of dropping an element of the result. Default 0. */
  readonly residDropout?: number;
  /** Standard deviation of cAttn's initial weight. Default 0.02. */
  readonly std?: number;
  /** Standard deviation of cProj's initial weight. Default `std`. */
  readonly projStd?: number;
  readonly init?: ParameterInit;
}

const RULES: OptionRules<MultiheadAttentionOptions> = {
  dim: whole(1),
  numHeads: whole(1),
  attnDropout: optional(PROBABILITY),
  residDropout: optional(PROBABILITY),
  std: optional(atLeast(0)),
  projStd: optional(atLeast(0)),
  init: INIT,
};

/**
 * Where the tokens of a call stand: in which document of a packed row, and behind which cached
 * ones.
 */
export interface MultiheadAttentionPlaces {
  /** [batch, seq] (u32): a position sees those of its own number alone. */
  readonly segments?: Tensor | undefined;
  /** Keys and values of positions before these, in one row. */
  readonly cache?: LayerCache | undefined;
}

/** x [batch, seq, dim] to [batch, seq, dim]; position t sees positions up to t. */
export class MultiheadAttention extends Module<
  [x: Tensor, places?: MultiheadAttentionPlaces],
  Tensor
> {
  readonly numHeads: number;
  readonly attnDropout: number;
  /** Queries, keys and values: [dim, 3 * dim]. */
  readonly cAttn: Conv1D;
  /** [dim, dim] */
  readonly cProj: Conv1D;
  readonly residDropout: Dropout;

  constructor(device: Device, options: MultiheadAttentionOptions) {
    super(device);
    checkOptions('MultiheadAttention', options, RULES);
    const { dim, numHeads, std = 0.02, projStd = std, init = ParameterInit.next(device) } = options;
    if ((dim / numHeads) % 2 !== 0) {
      throw new NnConfigError(
        `MultiheadAttention: expected dim to be numHeads times an even number, got dim ${dim}, numHeads ${numHeads}.`,
      );
    }
    this.numHeads = numHeads;
    this.attnDropout = options.attnDropout ?? 0;
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
      dropout: this.isTraining ? this.attnDropout : 0,
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
