// A sum and its root mean square normalization, by one kernel each way.

import { addRmsNorm, type Device, type NormedSum, type Tensor } from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  INIT,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameter-init.js';
import { setValues } from '../set-values.js';

/** Options of AddRmsNorm. */
export interface AddRmsNormOptions {
  /** Length of the last axis. */
  readonly dim: number;
  /** Default 1e-6. */
  readonly eps?: number;
  /** Only says whether values are deferred; they are ones. */
  readonly init?: ParameterInit;
}

const RULES: OptionRules<AddRmsNormOptions> = {
  dim: whole(1),
  eps: optional(atLeast(0)),
  init: INIT,
};

/**
 * x + residual, and RmsNorm of that sum, [..., dim] all: what a half of a block begins with, the
 * first one without a residual. Its parameter is that of RmsNorm.
 */
export class AddRmsNorm extends Module<[x: Tensor, residual?: Tensor], NormedSum> {
  /** [dim] */
  readonly weight: Tensor;
  readonly eps: number;

  constructor(device: Device, options: AddRmsNormOptions) {
    super(device);
    checkOptions('AddRmsNorm', options, RULES);
    const { dim, eps = 1e-6, init } = options;
    this.eps = eps;
    this.weight = this.parameter('weight', init?.ones([dim]) ?? device.full([dim], 1));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => init.ones(shape));
  }

  forward(x: Tensor, residual?: Tensor): NormedSum {
    const { weight, eps } = this;
    return addRmsNorm(x, { residual, weight, eps });
  }
}
