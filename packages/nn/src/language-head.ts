// The end of a language model: its last norm, and the product with a row for each word.

import { type Device, linear, linearCrossEntropy, type Tensor } from '@shardweave/tensor-core';
import { Module } from './module.js';
import type { ParameterInit } from './parameter-init.js';
import { setValues } from './set-values.js';
import { type HeadOptions, headRows } from './token-options.js';

/**
 * What a LanguageHead is made of: the last norm under its path, and the weight of the product,
 * which is either the token table (tied) or its own.
 */
export interface LanguageHeadOptions {
  readonly norm: readonly [name: string, norm: Module<[x: Tensor], Tensor>];
  readonly weight: TiedWeight | OwnWeight;
}

/** The token table under its path. */
export interface TiedWeight {
  readonly name: string;
  readonly table: Tensor;
}

/** A weight of the head's own, [words, width], drawn around zero with `std`. */
export interface OwnWeight {
  readonly name: string;
  readonly shape: readonly [words: number, width: number];
  readonly std: number;
  readonly init: ParameterInit;
}

/** x [batch, seq, width] to logits, or to each target's loss. */
export class LanguageHead extends Module<[x: Tensor, options?: HeadOptions], Tensor> {
  readonly norm: Module<[x: Tensor], Tensor>;
  /** [words, width] */
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

  override resetOwnParameters(init: ParameterInit): void {
    if (this.#own !== undefined) {
      const { name, std } = this.#own;
      setValues(this.weight, (shape) => init.normal(name, shape, { std }));
    }
  }

  async forward(x: Tensor, options: HeadOptions = {}): Promise<Tensor> {
    const { weight } = this;
    const { targets } = options;
    const rows = await this.norm.call(headRows(x, options));
    return targets === undefined
      ? linear(rows, { weight, transposeWeight: true })
      : linearCrossEntropy(rows, targets, { weight, reduction: 'none' });
  }
}
