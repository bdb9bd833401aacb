// The gated feed-forward layer (Shazeer, 2020), with the Hub's names.

import { type Device, swiGlu, type Tensor } from '@shardweave/tensor-core';
import { Linear } from '../layers/linear.js';
import { Module } from '../module.js';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import { blockParts, type DecoderConfig } from './decoder-config.js';

/**
 * Computes residual + down(silu(gate(x)) * up(x)). Both x and residual are [..., hidden_size], and
 * so is the result.
 */
export class DecoderMlp extends Module<[x: Tensor, residual: Tensor], Tensor> {
  /** Its weight is [intermediate_size, hidden_size], and so is that of upProj. */
  readonly gateProj: Linear;
  readonly upProj: Linear;
  /** Its weight is [hidden_size, intermediate_size]. */
  readonly downProj: Linear;

  constructor(device: Device, config: DecoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { hidden_size: width, intermediate_size: inner, initializer_range: std } = config;
    const { hasMlpBias: bias } = blockParts(config);
    const linear = (name: string, inFeatures: number, outFeatures: number) => {
      const options = { inFeatures, outFeatures, bias, std, init: init.at(name) };
      return this.child(name, new Linear(device, options));
    };
    this.gateProj = linear('gate_proj', width, inner);
    this.upProj = linear('up_proj', width, inner);
    this.downProj = linear('down_proj', inner, width);
  }

  async forward(x: Tensor, residual: Tensor): Promise<Tensor> {
    const gate = await this.gateProj.call(x); // [..., intermediate_size]
    const up = await this.upProj.call(x);
    return this.downProj.call(swiGlu(gate, { up }), { residual });
  }
}
