// A small residual network with batch normalization, after He et al. (2016) but with affine layers
// in place of convolutions. It serves tests of batch statistics.

import { BatchNorm1d, Linear, Module, ParameterInit, Sequential } from '@shardweave/nn';
import { add, type Device, relu, type Tensor } from '@shardweave/tensor-core';

/** A normalization over the second axis of [n, width]. */
export type MakeNorm = (device: Device, width: number) => Module<[x: Tensor], Tensor>;

export interface ResidualMlpOptions {
  readonly inFeatures: number;
  readonly width: number;
  readonly numBlocks: number;
  readonly numClasses: number;
  /** Makes each normalization, for instance a SyncBatchNorm. Default: BatchNorm1d. */
  readonly norm?: MakeNorm;
  /** The seed of the initial weights, equal on all ranks. Default 0. */
  readonly seed?: number;
}

/** x [n, inFeatures] to logits [n, numClasses]: a stem, residual blocks, a head. */
export class ResidualMlp extends Sequential<[x: Tensor], Tensor> {
  constructor(device: Device, options: ResidualMlpOptions) {
    const { inFeatures, width, numBlocks, numClasses, seed = 0 } = options;
    const norm = options.norm ?? ((on, numFeatures) => new BatchNorm1d(on, { numFeatures }));
    const init = new ParameterInit(device, { seed });
    super(device, [
      new ResidualStem(device, { inFeatures, width, norm, init: init.at('0') }),
      ...Array.from(
        { length: numBlocks },
        (_, i) => new ResidualBlock(device, { width, norm, init: init.at(String(i + 1)) }),
      ),
      new Linear(device, {
        inFeatures: width,
        outFeatures: numClasses,
        init: init.at(String(numBlocks + 1)),
      }),
    ]);
  }
}

/** The first layer: [n, inFeatures] to [n, width], with no element below 0. */
export class ResidualStem extends Module<[x: Tensor], Tensor> {
  readonly linear: Linear;
  readonly norm: Module<[x: Tensor], Tensor>;

  constructor(
    device: Device,
    options: {
      readonly inFeatures: number;
      readonly width: number;
      readonly norm: MakeNorm;
      readonly init: ParameterInit;
    },
  ) {
    super(device);
    const { inFeatures, width, norm, init } = options;
    this.linear = this.child('linear', normedLinear(device, inFeatures, width, init.at('linear')));
    this.norm = this.child('norm', norm(device, width));
  }

  async forward(x: Tensor): Promise<Tensor> {
    return relu(await this.norm.call(await this.linear.call(x)));
  }
}

/**
 * A residual block: x [n, width] plus two normalized affine maps of it, with no element below 0.
 */
export class ResidualBlock extends Module<[x: Tensor], Tensor> {
  readonly linear1: Linear;
  readonly norm1: Module<[x: Tensor], Tensor>;
  readonly linear2: Linear;
  readonly norm2: Module<[x: Tensor], Tensor>;

  constructor(
    device: Device,
    options: { readonly width: number; readonly norm: MakeNorm; readonly init: ParameterInit },
  ) {
    super(device);
    const { width, norm, init } = options;
    this.linear1 = this.child('linear1', normedLinear(device, width, width, init.at('linear1')));
    this.norm1 = this.child('norm1', norm(device, width));
    this.linear2 = this.child('linear2', normedLinear(device, width, width, init.at('linear2')));
    this.norm2 = this.child('norm2', norm(device, width));
  }

  async forward(x: Tensor): Promise<Tensor> {
    const hidden = relu(await this.norm1.call(await this.linear1.call(x)));
    return relu(add(x, await this.norm2.call(await this.linear2.call(hidden))));
  }
}

/** An affine map without a bias, since the normalization after it would remove the bias. */
function normedLinear(
  device: Device,
  inFeatures: number,
  outFeatures: number,
  init: ParameterInit,
): Linear {
  return new Linear(device, { inFeatures, outFeatures, bias: false, init });
}
