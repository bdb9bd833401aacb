// A linear layer that stores its weight as PyTorch does, [out, in].

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
import { ParameterInit } from '../parameters/parameter-init.js';
import { setValues } from '../set-values.js';

/** Options of Linear, whose weight is stored [outFeatures, inFeatures], as PyTorch's is. */
export interface LinearOptions {
  readonly inFeatures: number;
  readonly outFeatures: number;
  /** Whether the layer has a bias. Default true. */
  readonly bias?: boolean;
  /**
   * The standard deviation of a normally distributed initial weight, with a bias of zeros. By
   * default weight and bias are both uniform in +-1/sqrt(inFeatures), as in PyTorch.
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
 * A linear layer: x [..., inFeatures] to x weight^T + bias, [..., outFeatures]. A call may end with
 * an activation or with the sum with a residual.
 */
export class Linear extends Module<[x: Tensor, ending?: LinearEnding], Tensor> {
  /** Shape [outFeatures, inFeatures]. */
  readonly weight: Tensor;
  /** Shape [outFeatures]. */
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
