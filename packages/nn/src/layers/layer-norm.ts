// Layer normalization over the last axis (Ba, Kiros and Hinton, 2016).

import { type Device, layerNorm, type Tensor } from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  INIT,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import { setValues } from '../set-values.js';

/** Options of LayerNorm. */
export interface LayerNormOptions {
  /** The length of the last axis, over which each row is normalized. */
  readonly normalizedShape: number;
  /** Added to the variance before its root is taken. Default 1e-5. */
  readonly eps?: number;
  /**
   * Decides only whether the parameters are made now or deferred. They begin with ones and zeros
   * either way.
   */
  readonly init?: ParameterInit;
}

export const LAYER_NORM_RULES: OptionRules<LayerNormOptions> = {
  normalizedShape: whole(1),
  eps: optional(atLeast(0)),
  init: INIT,
};

/**
 * Normalizes each row of x [..., dim] to mean 0 and variance 1, multiplies it by weight (initially
 * ones) and adds bias (initially zeros). The result has x's shape.
 */
export class LayerNorm extends Module<[x: Tensor], Tensor> {
  /** Shape [normalizedShape]. */
  readonly weight: Tensor;
  /** Shape [normalizedShape]. */
  readonly bias: Tensor;
  readonly eps: number;

  constructor(device: Device, options: LayerNormOptions) {
    super(device);
    checkOptions('LayerNorm', options, LAYER_NORM_RULES);
    this.eps = options.eps ?? 1e-5;
    const { normalizedShape: dim, init } = options;
    this.weight = this.parameter('weight', init?.ones([dim]) ?? device.full([dim], 1));
    this.bias = this.parameter('bias', init?.zeros([dim]) ?? device.zeros([dim]));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => init.ones(shape));
    setValues(this.bias, (shape) => init.zeros(shape));
  }

  forward(x: Tensor): Tensor {
    return layerNorm(x, { weight: this.weight, bias: this.bias, eps: this.eps });
  }
}
