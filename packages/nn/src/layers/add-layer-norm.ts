// A sum and its layer normalization, by one kernel each way.

import { addLayerNorm, type Device, type NormedSum, type Tensor } from '@shardweave/tensor-core';
import { checkOptions } from '../check-options.js';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameter-init.js';
import { setValues } from '../set-values.js';
import { LAYER_NORM_RULES, type LayerNormOptions } from './layer-norm.js';

/**
 * x + residual, and LayerNorm of that sum, [..., dim] all: what a half of a block begins with, the
 * first one without a residual. Its parameters are those of LayerNorm.
 */
export class AddLayerNorm extends Module<[x: Tensor, residual?: Tensor], NormedSum> {
  /** [dim] */
  readonly weight: Tensor;
  /** [dim] */
  readonly bias: Tensor;
  readonly eps: number;

  constructor(device: Device, options: LayerNormOptions) {
    super(device);
    checkOptions('AddLayerNorm', options, LAYER_NORM_RULES);
    const { dim, eps = 1e-5, init } = options;
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
