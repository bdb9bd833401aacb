// The gated feed-forward layer (Shazeer, 2020), with the Hub's names.

import { type Device, geGlu, swiGlu, type Tensor } from '@shardweave/tensor-core';
import { Linear } from '../layers/linear.js';
import { Module } from '../module.js';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import type { DecoderConfig } from './decoder-config.js';
import type { FamilyTraits } from './decoder-families.js';
import { blockParts } from './decoder-parts.js';

/**
 * Computes residual + down(silu(gate(x)) * up(x)), for Gemma 3 with GELU by tanh in silu's place.
 * Both x and residual are [..., hidden_size], and so is the result. The residual may be left out.
 */
export class DecoderMlp extends Module<[x: Tensor, residual?: Tensor], Tensor> {
  /** Its weight is [intermediate_size, hidden_size], and so is that of upProj. */
  readonly gateProj: Linear;
  readonly upProj: Linear;
  /** Its weight is [hidden_size, intermediate_size]. */
  readonly downProj: Linear;
  readonly #gate: FamilyTraits['gate'];

  constructor(device: Device, config: DecoderConfig, { init }: ModelPartOptions) {
    super(device);
    const { hidden_size: width, intermediate_size: inner, initializer_range: std } = config;
    const { hasMlpBias: bias, gate } = blockParts(config);
    this.#gate = gate;
    const linear = (name: string, inFeatures: number, outFeatures: number) => {
      const options = { inFeatures, outFeatures, bias, std, init: init.at(name) };
      return this.child(name, new Linear(device, options));
    };
    this.gateProj = linear('gate_proj', width, inner);
    this.upProj = linear('up_proj', width, inner);
    this.downProj = linear('down_proj', inner, width);
  }

  async forward(x: Tensor, residual?: Tensor): Promise<Tensor> {
    const gate = await this.gateProj.call(x); // [..., intermediate_size]
    const up = await this.upProj.call(x);
    const gated =
      this.#gate === 'silu' ? swiGlu(gate, { up }) : geGlu(gate, { up, approximate: 'tanh' });
    return this.downProj.call(gated, residual && { residual });
  }
}
