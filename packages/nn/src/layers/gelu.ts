// The Gaussian error linear unit (Hendrycks and Gimpel, 2016).

import { type Device, gelu, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, oneOf, optional } from '../check-options.js';
import { Module } from '../module.js';

/**
 * Applies GELU to each element: exactly, by erf, with 'none' (default), or by the approximation
 * that GPT-2 uses with 'tanh'.
 */
export class Gelu extends Module<[x: Tensor], Tensor> {
  readonly approximate: 'none' | 'tanh';

  constructor(device: Device, options: { readonly approximate?: 'none' | 'tanh' } = {}) {
    super(device);
    checkOptions('Gelu', options, { approximate: optional(oneOf('none', 'tanh')) });
    this.approximate = options.approximate ?? 'none';
  }

  forward(x: Tensor): Tensor {
    return gelu(x, { approximate: this.approximate });
  }
}
