// An affine map with PyTorch's weight order, [out, in].

import { type Device, linear, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, INIT, type OptionRules, optional, whole } from '../check-options.js';
import { Module } from '../module.js';
import { ParameterInit } from '../parameter-init.js';
import { setValues } from '../set-values.js';

export interface LinearOptions {
  readonly inFeatures: number;
  readonly outFeatures: number;
  /** Default true. */
  readonly bias?: boolean;
  readonly init?: ParameterInit;
}

const RULES: OptionRules<LinearOptions> = {
  inFeatures: whole(0),
  outFeatures: whole(0),
  bias: optional(FLAG),
  init: INIT,
};

/** x [..., inFeatures] to x weight^T + bias, [..., outFeatures]. Uniform in +-1/sqrt(inFeatures). */
export class Linear extends Module<[x: Tensor], Tensor> {
  /** [outFeatures, inFeatures] */
  readonly weight: Tensor;
  /** [outFeatures] */
  readonly bias: Tensor | undefined;

  constructor(device: Device, options: LinearOptions) {
    super(device);
    checkOptions('Linear', options, RULES);
    const { inFeatures, outFeatures, bias = true, init = ParameterInit.next(device) } = options;
    const range = initialRange(inFeatures);
    this.weight = this.parameter(
      'weight',
      init.uniform('weight', [outFeatures, inFeatures], range),
    );
    this.bias = bias
      ? this.parameter('bias', init.uniform('bias', [outFeatures], range))
      : undefined;
  }

  override resetOwnParameters(init: ParameterInit): void {
    const range = initialRange(this.weight.shape[1]!);
    setValues(this.weight, (shape) => init.uniform('weight', shape, range));
    if (this.bias !== undefined) {
      setValues(this.bias, (shape) => init.uniform('bias', shape, range));
    }
  }

  forward(x: Tensor): Tensor {
    return linear(x, { weight: this.weight, bias: this.bias, transposeWeight: true });
  }
}

function initialRange(inFeatures: number) {
  const bound = inFeatures === 0 ? 0 : 1 / Math.sqrt(inFeatures);
  return { low: -bound, high: bound };
}
