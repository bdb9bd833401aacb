// A module that adds a residual and normalizes the sum by LayerNorm. Forward is one kernel, and
// so is the backward of both inputs.

import { addLayerNorm, type Device, type NormedSum, type Tensor } from '@shardweave/tensor-core';
import { checkOptions } from '../check-options.js';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import { setValues } from '../set-values.js';
import { LAYER_NORM_RULES, type LayerNormOptions } from './layer-norm.js';

/**
 * Adds a residual to x and normalizes the sum: x and residual [..., dim] to `{ sum, norm }`, both
 * [..., dim], where norm is the LayerNorm of sum. Each half of a transformer block begins with it.
 * The first half passes no residual, and then sum equals x. The parameters are those of
 * LayerNorm: a weight of ones and a bias of zeros.
 */
export class AddLayerNorm extends Module<[x: Tensor, residual?: Tensor], NormedSum> {
  /** Shape [normalizedShape]. */
  readonly weight: Tensor;
  /** Shape [normalizedShape]. */
  readonly bias: Tensor;
  readonly eps: number;

  constructor(device: Device, options: LayerNormOptions) {
    super(device);
    checkOptions('AddLayerNorm', options, LAYER_NORM_RULES);
    const { normalizedShape: dim, eps = 1e-5, init } = options;
    this.eps = eps;
    this.weight = this.parameter('weight', init?.ones([dim]) ?? device.full([dim], 1));
    this.bias = this.parameter('bias', init?.zeros([dim]) ?? device.zeros([dim]));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => init.ones(shape));
    setValues(this.bias, (shape) => init.zeros(shape));
  }

  forward(x: Tensor, residual?: Tensor): NormedSum {
    const { weight, bias, eps } = this;
    return addLayerNorm(x, { residual, weight, bias, eps });
  }
}
