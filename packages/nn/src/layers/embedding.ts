// A table of trainable vectors that are looked up by id.

import { type Device, embedding, type Tensor } from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  INIT,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { Module } from '../module.js';
import { ParameterInit } from '../parameters/parameter-init.js';
import { shardedTableOf, TOKEN_TABLE } from '../parameters/sharded-table.js';
import { setValues } from '../set-values.js';

/** Options of Embedding, a table of [numEmbeddings, embeddingDim]. */
export interface EmbeddingOptions {
  readonly numEmbeddings: number;
  readonly embeddingDim: number;
  /** The standard deviation of the initial table. Default 1. */
  readonly std?: number;
  readonly init?: ParameterInit;
}

const RULES: OptionRules<EmbeddingOptions> = {
  numEmbeddings: whole(0),
  embeddingDim: whole(0),
  std: optional(atLeast(0)),
  init: INIT,
};

/**
 * Looks up ids [...] (i32 or u32) in its table and gives their rows, [..., embeddingDim]. An id
 * outside the table gives zeros and gets no gradient.
 */
export class Embedding extends Module<[ids: Tensor], Tensor> {
  /** Shape [numEmbeddings, embeddingDim]. */
  readonly weight: Tensor;
  readonly #std: number;

  constructor(device: Device, options: EmbeddingOptions) {
    super(device);
    checkOptions('Embedding', options, RULES);
    const { numEmbeddings, embeddingDim, std = 1, init = ParameterInit.next(device) } = options;
    this.#std = std;
    const shape = [numEmbeddings, embeddingDim];
    this.weight = this.parameter('weight', init.normal('weight', shape, { std }));
  }

  /** @internal */
  get [TOKEN_TABLE](): Tensor {
    return this.weight;
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => init.normal('weight', shape, { std: this.#std }));
  }

  forward(ids: Tensor): Tensor | Promise<Tensor> {
    return shardedTableOf(this.weight)?.lookUp(ids) ?? embedding(this.weight, ids);
  }
}
