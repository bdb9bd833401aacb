// An affine map with PyTorch's weight order, [out, in].

import { type Device, linear, type Tensor } from '@shardweave/tensor-core';
import { Module } from '../module.js';
import { ParameterInit } from '../parameter-init.js';

export interface LinearOptions {
  readonly inFeatures: number;
  readonly outFeatures: number;
  /** Default true. */
  readonly bias?: boolean;
  readonly init?: ParameterInit;
}

/** x [..., inFeatures] to x weight^T + bias, [..., outFeatures]. Uniform in +-1/sqrt(inFeatures). */
export class Linear extends Module<[x: Tensor], Tensor> {
  /** [outFeatures, inFeatures] */
  readonly weight: Tensor;
  /** [outFeatures] */
  readonly bias: Tensor | undefined;

  constructor(device: Device, options: LinearOptions) {
    super(device);
    const { inFeatures, outFeatures, bias = true, init = ParameterInit.next(device) } = options;
    const bound = inFeatures === 0 ? 0 : 1 / Math.sqrt(inFeatures);
    const range = { low: -bound, high: bound };
    this.weight = this.parameter(
      'weight',
      init.uniform('weight', [outFeatures, inFeatures], range),
    );
    this.bias = bias
      ? this.parameter('bias', init.uniform('bias', [outFeatures], range))
      : undefined;
  }

  forward(x: Tensor): Tensor {
    return linear(x, { weight: this.weight, bias: this.bias, transposeWeight: true });
  }
}
