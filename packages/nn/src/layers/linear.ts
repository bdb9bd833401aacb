// An affine map with PyTorch's weight order, [out, in].

import {
  type Device,
  type LinearEnding,
  linear,
  type Shape,
  type Tensor,
} from '@shardweave/tensor-core';
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
import { ParameterInit } from '../parameter-init.js';
import { setValues } from '../set-values.js';

/** Options of Linear, whose weight is stored [outFeatures, inFeatures], as PyTorch's is. */
export interface LinearOptions {
  readonly inFeatures: number;
  readonly outFeatures: number;
  /** Default true. */
  readonly bias?: boolean;
  /**
   * Standard deviation of a normal initial weight, beside which the bias is zero. Default: both are
   * uniform in +-1/sqrt(inFeatures).
   */
  readonly std?: number;
  readonly init?: ParameterInit;
}

const RULES: OptionRules<LinearOptions> = {
  inFeatures: whole(0),
  outFeatures: whole(0),
  bias: optional(FLAG),
  std: optional(atLeast(0)),
  init: INIT,
};

/**
 * x [..., inFeatures] to x weight^T + bias, [..., outFeatures], and what the call says that it ends
 * with.
 */
export class Linear extends Module<[x: Tensor, ending?: LinearEnding], Tensor> {
  /** [outFeatures, inFeatures] */
  readonly weight: Tensor;
  /** [outFeatures] */
  readonly bias: Tensor | undefined;
  readonly #std: number | undefined;

  constructor(device: Device, options: LinearOptions) {
    super(device);
    checkOptions('Linear', options, RULES);
    const { inFeatures, outFeatures, bias = true, init = ParameterInit.next(device) } = options;
    this.#std = options.std;
    this.weight = this.parameter(
      'weight',
      initialWeight(init, [outFeatures, inFeatures], options.std),
    );
    const biasShape = [outFeatures];
    this.bias = bias
      ? this.parameter('bias', initialBias(init, biasShape, { inFeatures, std: options.std }))
      : undefined;
  }

  override resetOwnParameters(init: ParameterInit): void {
    const std = this.#std;
    const inFeatures = this.weight.shape[1]!;
    setValues(this.weight, (shape) => initialWeight(init, shape, std));
    if (this.bias !== undefined) {
      setValues(this.bias, (shape) => initialBias(init, shape, { inFeatures, std }));
    }
  }

  forward(x: Tensor, ending: LinearEnding = {}): Tensor {
    const { weight, bias } = this;
    return linear(x, { weight, bias, transposeWeight: true, ...ending });
  }
}

function initialWeight(init: ParameterInit, shape: Shape, std: number | undefined): Tensor {
  return std === undefined
    ? init.uniform('weight', shape, initialRange(shape[1]!))
    : init.normal('weight', shape, { std });
}

function initialBias(
  init: ParameterInit,
  shape: Shape,
  { inFeatures, std }: { readonly inFeatures: number; readonly std: number | undefined },
): Tensor {
  return std === undefined
    ? init.uniform('bias', shape, initialRange(inFeatures))
    : init.zeros(shape);
}

function initialRange(inFeatures: number) {
  const bound = inFeatures === 0 ? 0 : 1 / Math.sqrt(inFeatures);
  return { low: -bound, high: bound };
}
