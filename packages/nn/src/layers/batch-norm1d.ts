// Batch normalization (Ioffe and Szegedy, 2015) with PyTorch's options, names and arithmetic.

import {
  add,
  affine,
  cast,
  type Device,
  mul,
  reciprocal,
  ShapeError,
  sub,
  type Tensor,
} from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  FLAG,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { isModule, Module } from '../module.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import { setValues } from '../set-values.js';
import {
  type BatchMoments,
  type GradientSums,
  momentsOf,
  normalizeBatch,
} from './batch-normalize.js';
import { BatchParts } from './batch-parts.js';

/** Options of BatchNorm1d, with PyTorch's meaning and defaults. */
export interface BatchNormOptions {
  /** The number of channels, which is the length of x's second axis. */
  readonly numFeatures: number;
  /** Added to the variance before its root is taken. Default 1e-5. */
  readonly eps?: number;
  /**
   * The weight of a new batch in the running statistics: running = (1 - momentum) * running +
   * momentum * batch. 'cumulative' makes them the plain mean over all batches, as None does in
   * PyTorch. Default 0.1.
   */
  readonly momentum?: number | 'cumulative';
  /** Whether each channel has a trainable weight (ones) and bias (zeros). Default true. */
  readonly affine?: boolean;
  /**
   * Whether the layer keeps running statistics and normalizes by them in evaluation. Without them
   * it normalizes by each batch's own statistics in evaluation too. Default true.
   */
  readonly trackRunningStats?: boolean;
}

/** The rules of these options, for a subclass that adds options of its own. */
export const BATCH_NORM_RULES: OptionRules<BatchNormOptions> = {
  numFeatures: whole(1),
  eps: optional(atLeast(0)),
  momentum: optional({
    expected: "a number from 0 to 1, or 'cumulative'",
    holds: (value) =>
      value === 'cumulative' || (typeof value === 'number' && value >= 0 && value <= 1),
  }),
  affine: optional(FLAG),
  trackRunningStats: optional(FLAG),
};

const BRAND = Symbol.for('@shardweave/nn/BatchNorm1d');

/**
 * Whether a module is a BatchNorm1d or one of its subclasses, no matter which copy of this package
 * made it.
 */
export function isBatchNorm(module: unknown): module is BatchNorm1d {
  return isModule(module) && BRAND in module;
}

/** The handle on a batch that passes in parts, which `beginBatch` returns. */
export interface PartedBatch {
  /** Call it before the forward of each part. */
  beginPart(): void;
  /** Call it when all parts have passed. The running statistics move now. */
  end(): void;
  /**
   * Call it when a part has failed. The running statistics stay as they are. After `end` it does
   * nothing.
   */
  abandon(): void;
}

/**
 * Normalizes each channel of x [n, c] or [n, c, l] over the other axes. In training it uses the
 * mean and the biased variance of the batch, and moves the running statistics towards the batch's
 * mean and unbiased variance, as PyTorch does. In evaluation it uses the running statistics.
 * Statistics are f32 whatever dtype x has. Where activation checkpointing repeats a forward during
 * backward, the running statistics stay, so that each batch counts once.
 */
export class BatchNorm1d extends Module<[x: Tensor], Tensor> {
  readonly [BRAND] = true;
  readonly numFeatures: number;
  readonly eps: number;
  readonly momentum: number | 'cumulative';
  /** Weight, bias and both running statistics have the shape [c]. */
  readonly weight: Tensor | undefined;
  readonly bias: Tensor | undefined;
  readonly runningMean: Tensor | undefined;
  readonly runningVar: Tensor | undefined;
  /** A scalar of dtype u32, shape []. */
  readonly numBatchesTracked: Tensor | undefined;
  #parts: BatchParts | undefined;

  constructor(device: Device, options: BatchNormOptions) {
    super(device);
    checkOptions('BatchNorm1d', options, BATCH_NORM_RULES);
    const { numFeatures, eps = 1e-5, momentum = 0.1 } = options;
    this.numFeatures = numFeatures;
    this.eps = eps;
    this.momentum = momentum;
    const shape = [numFeatures];
    if (options.affine ?? true) {
      this.weight = this.parameter('weight', device.full(shape, 1));
      this.bias = this.parameter('bias', device.zeros(shape));
    }
    if (options.trackRunningStats ?? true) {
      this.runningMean = this.buffer('running_mean', device.zeros(shape));
      this.runningVar = this.buffer('running_var', device.full(shape, 1));
      this.numBatchesTracked = this.buffer(
        'num_batches_tracked',
        device.zeros([], { dtype: 'u32' }),
      );
    }
  }

  /** Resets the running statistics and their count as well as the parameters. */
  override resetOwnParameters(init: ParameterInit): void {
    for (const tensor of [this.weight, this.runningVar]) {
      if (tensor !== undefined) {
        setValues(tensor, (shape) => init.ones(shape));
      }
    }
    for (const tensor of [this.bias, this.runningMean, this.numBatchesTracked]) {
      if (tensor !== undefined) {
        setValues(tensor, (shape) => init.zeros(shape));
      }
    }
  }

  /**
   * Normalizes x [n, c] or [n, c, l]; the result has the same shape and dtype.
   * @throws {ShapeError} for an x of another shape, and in training for fewer than two values per
   * channel
   */
  async forward(x: Tensor): Promise<Tensor> {
    this.#checkShape(x);
    const { weight, bias, eps, runningMean, runningVar } = this;
    if (!this.isTraining && runningMean !== undefined && runningVar !== undefined) {
      // The mean is copied, because backward reads it later and the running mean may have moved on
      // by then. The variance needs no copy: only its reciprocal root, computed right now, is
      // saved.
      const mean = cast(runningMean, 'f32', { copy: true });
      const variance = cast(runningVar, 'f32');
      return normalizeBatch(x, { mean, variance, weight, bias, eps });
    }
    const { isTraining } = this; // as it is now: backward may come after an eval()
    const local = momentsOf(x);
    const moments = isTraining ? await this.joinMoments(local) : local;
    const { mean, variance, count } = moments;
    if (isTraining && count < 2) {
      throw new ShapeError(
        `BatchNorm1d: expected more than one value a channel in training, got ${count} (x is [${x.shape.join(', ')}]). One value has no variance; use a larger batch or eval().`,
      );
    }
    if (isTraining && !this.device.isInBackward) {
      this.#track(moments);
    }
    const joinSums = (sums: GradientSums) => (isTraining ? this.joinSums(sums) : sums);
    return normalizeBatch(x, { mean, variance, weight, bias, eps, batch: { count, joinSums } });
  }

  /**
   * Treats the following forwards as parts of one batch, such as micro-batches. Each part is
   * normalized by its own moments; the running statistics move once, at `end`, by the moments of
   * all parts together.
   */
  beginBatch(): PartedBatch {
    const parts = new BatchParts();
    this.#parts = parts;
    const leave = () => {
      if (this.#parts === parts) {
        this.#parts = undefined;
      }
    };
    return {
      beginPart: () => parts.beginPart(),
      end: () => {
        leave();
        parts.end((moments) => this.#move(moments));
      },
      abandon: () => {
        leave();
        parts.abandon();
      },
    };
  }

  /**
   * Turns the moments of this rank's rows into those of the whole training batch. Here they are the
   * same; SyncBatchNorm overrides this.
   */
  protected joinMoments(local: BatchMoments): BatchMoments | Promise<BatchMoments> {
    return local;
  }

  /**
   * Turns the gradient sums of this rank's rows into those of the whole training batch. Here they
   * are the same; SyncBatchNorm overrides this.
   */
  protected joinSums(local: GradientSums): GradientSums | Promise<GradientSums> {
    return local;
  }

  #track(moments: BatchMoments): void {
    if (this.runningMean === undefined) {
      return;
    }
    if (this.#parts === undefined) {
      this.#move(moments);
    } else {
      this.#parts.add(moments);
    }
  }

  #move({ mean, variance, count }: BatchMoments): void {
    const { device, momentum, runningMean, runningVar, numBatchesTracked } = this;
    if (runningMean === undefined || runningVar === undefined || numBatchesTracked === undefined) {
      return;
    }
    device.noGrad(() =>
      device.scope(() => {
        device.addInPlace(numBatchesTracked, device.full([], 1, { dtype: 'u32' }));
        const unbiased = affine(variance, count / (count - 1), 0);
        for (const [running, value] of [
          [runningMean, mean],
          [runningVar, unbiased],
        ] as const) {
          const old = cast(running, 'f32');
          const next =
            momentum === 'cumulative'
              ? add(old, mul(sub(value, old), reciprocal(cast(numBatchesTracked, 'f32'))))
              : add(affine(old, 1 - momentum, 0), affine(value, momentum, 0));
          device.copyInto(running, next);
        }
      }),
    );
  }

  #checkShape(x: Tensor): void {
    if ((x.rank === 2 || x.rank === 3) && x.shape[1] === this.numFeatures) {
      return;
    }
    throw new ShapeError(
      `BatchNorm1d: expected x [n, ${this.numFeatures}] or [n, ${this.numFeatures}, l], got [${x.shape.join(', ')}].`,
    );
  }
}
