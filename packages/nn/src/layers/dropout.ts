// Zeroes elements at random in training. The mask comes from the device's random state.

import { type Device, dropout, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, PROBABILITY } from '../check-options.js';
import { Module } from '../module.js';

/**
 * Zeroes each element of x with probability p and multiplies the others by 1 / (1 - p). In
 * evaluation, or with p = 0, it returns x itself.
 */
export class Dropout extends Module<[x: Tensor], Tensor> {
  readonly p: number;

  constructor(device: Device, options: { readonly p: number }) {
    super(device);
    checkOptions('Dropout', options, { p: PROBABILITY });
    this.p = options.p;
  }

  /** Whether a call returns x itself: in evaluation, and where p is 0. */
  get isIdle(): boolean {
    return this.p === 0 || !this.isTraining;
  }

  forward(x: Tensor): Tensor {
    return this.isIdle ? x : dropout(x, this.p);
  }
}
