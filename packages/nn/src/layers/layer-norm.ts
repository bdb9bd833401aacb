// Layer normalisation over the last axis (Ba, Kiros and Hinton, 2016).

import { type Device, layerNorm, type Tensor } from '@shardweave/tensor-core';
import { Module } from '../module.js';

export interface LayerNormOptions {
  /** Length of the last axis. */
  readonly dim: number;
  /** Default 1e-5. */
  readonly eps?: number;
}

/** Normalises each row of x [..., dim], then scales by weight (ones) and adds bias (zeros). */
export class LayerNorm extends Module<[x: Tensor], Tensor> {
  /** [dim] */
  readonly weight: Tensor;
  /** [dim] */
  readonly bias: Tensor;
  readonly eps: number;

  constructor(device: Device, options: LayerNormOptions) {
    super(device);
    this.eps = options.eps ?? 1e-5;
    this.weight = this.parameter('weight', device.full([options.dim], 1));
    this.bias = this.parameter('bias', device.zeros([options.dim]));
  }

  forward(x: Tensor): Tensor {
    return layerNorm(x, { weight: this.weight, bias: this.bias, eps: this.eps });
  }
}
