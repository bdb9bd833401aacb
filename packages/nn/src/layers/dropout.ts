// Zeroes elements at random while training; the mask comes from the device's random state.

import { type Device, dropout, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, PROBABILITY } from '../check-options.js';
import { Module } from '../module.js';

/** Zeroes elements with probability p and scales the others by 1 / (1 - p); x itself in eval. */
export class Dropout extends Module<[x: Tensor], Tensor> {
  readonly p: number;

  constructor(device: Device, options: { readonly p: number }) {
    super(device);
    checkOptions('Dropout', options, { p: PROBABILITY });
    this.p = options.p;
  }

  /** Whether it leaves all elements as they are. */
  get isIdle(): boolean {
    return this.p === 0 || !this.isTraining;
  }

  forward(x: Tensor): Tensor {
    return this.isIdle ? x : dropout(x, this.p);
  }
}
