// A frozen linear layer and, beside it, the trained product of two narrow matrices (Hu et al.,
// "LoRA", 2021).

import {
  activate,
  add,
  type Device,
  dropout,
  type LinearEnding,
  linear,
  mul,
  type Tensor,
} from '@shardweave/tensor-core';
import { Conv1D } from '../layers/conv1d.js';
import type { Linear } from '../layers/linear.js';
import { Module } from '../module.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import { setValues } from '../set-values.js';

/**
 * The layers that can be adapted: Linear, whose weight is [out, in], and Conv1D, whose weight is
 * [in, out].
 */
export type AdaptableLinear = Linear | Conv1D;

/** The rank of an adapter, and the factor of its product, which is alpha / rank. */
export interface LoraScale {
  /** Rows of lora_A, columns of lora_B. */
  readonly rank: number;
  /** The product of the two matrices is multiplied by alpha / rank. */
  readonly alpha: number;
}

/** Options of LoraLinear. */
export interface LoraLinearOptions extends LoraScale {
  /** The probability of dropping an element of the adapter's input in training. */
  readonly dropout: number;
  readonly init: ParameterInit;
}

/**
 * Computes base(x) + (alpha / rank) dropout(x) A^T B^T for x [..., in]; the result is [..., out]. A
 * is lora_A.weight [rank, in], initially uniform in +-1/sqrt(in), as PEFT has it. B is
 * lora_B.weight [out, rank], initially zero, so that the layer first computes what its base does.
 * The base's parameters keep their paths.
 */
export class LoraLinear extends Module<[x: Tensor, ending?: LinearEnding], Tensor> {
  readonly base: AdaptableLinear;
  readonly loraA: LoraFactor;
  readonly loraB: LoraFactor;
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  /** Whether the adapter takes part; without it the layer is its base. See withoutAdapters. */
  isOn = true;

  constructor(base: AdaptableLinear, options: LoraLinearOptions) {
    super(base.device);
    const { rank, init } = options;
    const { inFeatures, outFeatures } = featuresOf(base);
    this.base = this.child('base', base);
    this.rank = rank;
    this.alpha = options.alpha;
    this.dropout = options.dropout;
    const factor = (name: string, shape: readonly [number, number], isZero: boolean) =>
      this.child(name, new LoraFactor(this.device, { shape, isZero, init: init.at(name) }));
    this.loraA = factor('lora_A', [rank, inFeatures], false);
    this.loraB = factor('lora_B', [outFeatures, rank], true);
  }

  override childPrefix(name: string): string {
    return name === 'base' ? '' : name;
  }

  async forward(x: Tensor, ending: LinearEnding = {}): Promise<Tensor> {
    if (!this.isOn) {
      return this.base.call(x, ending);
    }
    const { activation, residual } = ending;
    const input = this.isTraining && this.dropout > 0 ? dropout(x, this.dropout) : x;
    const narrow = mul(await this.loraA.call(input), this.alpha / this.rank); // [..., rank]
    const sum = await this.loraB.call(narrow, { residual: await this.base.call(x) });
    if (residual !== undefined) {
      return add(residual, sum);
    }
    return activation === undefined ? sum : activate(sum, activation);
  }
}

/** Computes x weight^T, [..., in] to [..., out], and adds a residual where the call has one. */
export class LoraFactor extends Module<
  [x: Tensor, added?: { readonly residual?: Tensor }],
  Tensor
> {
  /** Shape [out, in]. */
  readonly weight: Tensor;
  readonly #isZero: boolean;

  constructor(
    device: Device,
    options: {
      readonly shape: readonly [rows: number, columns: number];
      readonly isZero: boolean;
      readonly init: ParameterInit;
    },
  ) {
    super(device);
    this.#isZero = options.isZero;
    this.weight = this.parameter('weight', this.#initial(options.shape, options.init));
  }

  override resetOwnParameters(init: ParameterInit): void {
    setValues(this.weight, (shape) => this.#initial(shape as [number, number], init));
  }

  forward(x: Tensor, added: { readonly residual?: Tensor } = {}): Tensor {
    return linear(x, { weight: this.weight, transposeWeight: true, ...added });
  }

  #initial(shape: readonly [number, number], init: ParameterInit): Tensor {
    const bound = 1 / Math.sqrt(shape[1]);
    return this.#isZero
      ? init.zeros(shape)
      : init.uniform('weight', shape, { low: -bound, high: bound });
  }
}

/** The lengths of the last axes of a layer's input and output. */
function featuresOf(base: AdaptableLinear): {
  readonly inFeatures: number;
  readonly outFeatures: number;
} {
  const [rows, cols] = base.weight.shape as [number, number];
  return base instanceof Conv1D
    ? { inFeatures: rows, outFeatures: cols }
    : { inFeatures: cols, outFeatures: rows };
}
