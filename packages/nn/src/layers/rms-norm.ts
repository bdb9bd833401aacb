// Root mean square normalization over the last axis (Zhang and Sennrich, 2019).

import { type Device, rmsNorm, type Tensor } from '@shardweave/tensor-core';
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

/** Options of the layer RmsNorm. */
export interface RmsNormLayerOptions {
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

const RULES: OptionRules<RmsNormLayerOptions> = {
  normalizedShape: whole(1),
  eps: optional(atLeast(0)),
  isOffset: optional(FLAG),
  init: INIT,
};

/**
 * Divides each row of x [..., dim] by its root mean square, then multiplies it by weight (initially
 * ones). The result has x's shape.
 */
export class RmsNorm extends Module<[x: Tensor], Tensor> {
  /** Shape [normalizedShape]. */
  readonly weight: Tensor;
  readonly eps: number;
  readonly isOffset: boolean;

  constructor(device: Device, options: RmsNormLayerOptions) {
    super(device);
    checkOptions('RmsNorm', options, RULES);
    this.eps = options.eps ?? 1e-6;
    this.isOffset = options.isOffset ?? false;
    const { normalizedShape: dim, init } = options;
    const initial = this.isOffset ? init?.zeros([dim]) : init?.ones([dim]);
    this.weight = this.parameter('weight', initial ?? device.full([dim], this.isOffset ? 0 : 1));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => (this.isOffset ? init.zeros(shape) : init.ones(shape)));
  }

  forward(x: Tensor): Tensor {
    const { weight, eps, isOffset } = this;
    return rmsNorm(x, { weight, eps, weightOffset: isOffset ? 1 : 0 });
  }
}
