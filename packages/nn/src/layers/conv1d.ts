// A linear layer that stores its weight as GPT-2 does, [in, out]. Hugging Face calls this layer
// Conv1D although it convolves nothing.

import { type Device, type LinearEnding, linear, type Tensor } from '@shardweave/tensor-core';
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
import { setValues } from '../set-values.js';

/** Options of Conv1D, GPT-2's linear layer, whose weight is stored [inFeatures, outFeatures]. */
export interface Conv1DOptions {
  readonly inFeatures: number;
  readonly outFeatures: number;
  /** The standard deviation of the initial weight. Default 0.02, which is GPT-2's. */
  readonly std?: number;
  readonly init?: ParameterInit;
}

const RULES: OptionRules<Conv1DOptions> = {
  inFeatures: whole(0),
  outFeatures: whole(0),
  std: optional(atLeast(0)),
  init: INIT,
};

/**
 * A linear layer: x [..., inFeatures] to x weight + bias, [..., outFeatures]. A call may end with
 * an activation or with the sum with a residual. The initial weight is normally distributed, and
 * the bias is zero.
 */
export class Conv1D extends Module<[x: Tensor, ending?: LinearEnding], Tensor> {
  /** Shape [inFeatures, outFeatures]. */
  readonly weight: Tensor;
  /** Shape [outFeatures]. */
  readonly bias: Tensor;
  readonly #std: number;

  constructor(device: Device, options: Conv1DOptions) {
    super(device);
    checkOptions('Conv1D', options, RULES);
    const { inFeatures, outFeatures, std = 0.02, init = ParameterInit.next(device) } = options;
    this.#std = std;
    const weight = init.normal('weight', [inFeatures, outFeatures], { std });
    this.weight = this.parameter('weight', weight);
    this.bias = this.parameter('bias', init.zeros([outFeatures]));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => init.normal('weight', shape, { std: this.#std }));
    setValues(this.bias, (shape) => init.zeros(shape));
  }

  forward(x: Tensor, ending: LinearEnding = {}): Tensor {
    return linear(x, { weight: this.weight, bias: this.bias, ...ending });
  }
}
