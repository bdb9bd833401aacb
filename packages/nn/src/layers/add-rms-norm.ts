// A module that adds a residual and normalizes the sum by RmsNorm. Forward is one kernel, and
// so is the backward of both inputs.

import { addRmsNorm, type Device, type NormedSum, type Tensor } from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  FLAG,
  INIT,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import { setValues } from '../set-values.js';

/** Options of AddRmsNorm. */
export interface AddRmsNormOptions {
  /** The length of the last axis, over which each row is normalized. */
  readonly normalizedShape: number;
  /** Added to the mean square before its root is taken. Default 1e-6. */
  readonly eps?: number;
  /**
   * Whether the weight is stored as its difference from one and begins with zeros, as Gemma's is.
   * Default false.
   */
  readonly isOffset?: boolean;
  /**
   * Decides only whether the weight is made now or deferred. It begins with ones, or with zeros
   * where isOffset is set.
   */
  readonly init?: ParameterInit;
}

const RULES: OptionRules<AddRmsNormOptions> = {
  normalizedShape: whole(1),
  eps: optional(atLeast(0)),
  isOffset: optional(FLAG),
  init: INIT,
};

/**
 * Adds a residual to x and normalizes the sum: x and residual [..., dim] to `{ sum, norm }`, both
 * [..., dim], where norm is the RmsNorm of sum. Each half of a transformer block begins with it.
 * The first half passes no residual, and then sum equals x. The only parameter is a weight.
 */
export class AddRmsNorm extends Module<[x: Tensor, residual?: Tensor], NormedSum> {
  /** Shape [normalizedShape]. */
  readonly weight: Tensor;
  readonly eps: number;
  readonly isOffset: boolean;

  constructor(device: Device, options: AddRmsNormOptions) {
    super(device);
    checkOptions('AddRmsNorm', options, RULES);
    const { normalizedShape: dim, eps = 1e-6, isOffset = false, init } = options;
    this.eps = eps;
    this.isOffset = isOffset;
    const initial = isOffset ? init?.zeros([dim]) : init?.ones([dim]);
    this.weight = this.parameter('weight', initial ?? device.full([dim], isOffset ? 0 : 1));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => (this.isOffset ? init.zeros(shape) : init.ones(shape)));
  }

  forward(x: Tensor, residual?: Tensor): NormedSum {
    const { weight, eps, isOffset } = this;
    return addRmsNorm(x, { residual, weight, eps, weightOffset: isOffset ? 1 : 0 });
  }
}
