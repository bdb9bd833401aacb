// The end of a language model: its last norm, and the product with one row for each token of the
// vocabulary.

import { type Device, linear, linearCrossEntropy, type Tensor } from '@shardweave/tensor-core';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import { shardedTableOf, TOKEN_TABLE } from '../parameters/sharded-table.js';
import { setValues } from '../set-values.js';
import { type HeadOptions, headRows } from './token-options.js';

/**
 * Options of LanguageHead: the last norm with its path, and the weight of the product, which is
 * either the token table (tied) or the head's own.
 */
export interface LanguageHeadOptions {
  readonly norm: readonly [name: string, norm: Module<[x: Tensor], Tensor>];
  readonly weight: TiedWeight | OwnWeight;
}

/** The token table, which the embeddings own, with the weight's path in the head. */
export interface TiedWeight {
  readonly name: string;
  readonly table: Tensor;
}

/** A weight of the head's own, [words, width], normally distributed around zero with `std`. */
export interface OwnWeight {
  readonly name: string;
  readonly shape: readonly [words: number, width: number];
  readonly std: number;
  readonly init: ParameterInit;
}

/**
 * The head of a language model: x [batch, seq, width] to logits [batch, seq, words] or, where
 * targets are given, to the loss of each token, f32 [batch, seq]. With onlyHidden it is the last
 * norm alone.
 */
export class LanguageHead extends Module<[x: Tensor, options?: HeadOptions], Tensor> {
  readonly norm: Module<[x: Tensor], Tensor>;
  /** Shape [words, width]. */
  readonly weight: Tensor;
  readonly #own: Pick<OwnWeight, 'name' | 'std'> | undefined;

  constructor(device: Device, { norm, weight }: LanguageHeadOptions) {
    super(device);
    this.norm = this.child(...norm);
    const { name } = weight;
    if ('table' in weight) {
      this.weight = this.sharedParameter(name, weight.table);
      return;
    }
    const { shape, std, init } = weight;
    this.weight = this.parameter(name, init.normal(name, shape, { std }));
    this.#own = { name, std };
  }

  /** @internal */
  get [TOKEN_TABLE](): Tensor {
    return this.weight;
  }

  override resetOwnParameters(init: ParameterInit): void {
    if (this.#own !== undefined) {
      const { name, std } = this.#own;
      setValues(this.weight, (shape) => init.normal(name, shape, { std }));
    }
  }

  async forward(x: Tensor, options: HeadOptions = {}): Promise<Tensor> {
    const { weight } = this;
    const { targets, onlyHidden = false } = options;
    const rows = await this.norm.call(headRows(x, options));
    if (onlyHidden) {
      return rows;
    }
    const sharded = shardedTableOf(weight);
    if (sharded !== undefined) {
      return targets === undefined ? sharded.logits(rows) : sharded.losses(rows, targets);
    }
    return targets === undefined
      ? linear(rows, { weight, transposeWeight: true })
      : linearCrossEntropy(rows, targets, { weight, reduction: 'none' });
  }
}
