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
import type { ParameterInit } from '../parameter-init.js';
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
  /** Length of the second axis. */
  readonly numFeatures: number;
  /** Default 1e-5. */
  readonly eps?: number;
  /**
   * What part of the running statistics a batch replaces, or 'cumulative' for the plain mean over
   * batches (PyTorch's None). Default 0.1.
   */
  readonly momentum?: number | 'cumulative';
  /** A trainable weight (ones) and bias (zeros) for each channel. Default true. */
  readonly affine?: boolean;
  /** Keep running statistics and evaluate with them; else with the batch's. Default true. */
  readonly trackRunningStats?: boolean;
}

/** What a class over this one checks beside options of its own. */
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

/** Whether a module is a BatchNorm1d or a kind of it, of this copy of the package or of another. */
export function isBatchNorm(module: unknown): module is BatchNorm1d {
  return isModule(module) && BRAND in module;
}

/** What `beginBatch` returns. */
export interface PartedBatch {
  /** Before each part's forward. */
  beginPart(): void;
  /** All parts have passed: the running statistics move. */
  end(): void;
  /** A part failed: they stay. Nothing after `end`. */
  abandon(): void;
}

/**
 * Normalizes each channel of x [n, c] or [n, c, l] over the other axes: in training with the
 * batch's biased variance, and the unbiased one goes into running_var; in evaluation with the
 * running statistics. Statistics are f32 whatever x is. A forward that a backward repeats
 * (checkpointing) leaves the running statistics alone, so each batch counts once.
 */
export class BatchNorm1d extends Module<[x: Tensor], Tensor> {
  readonly [BRAND] = true;
  readonly numFeatures: number;
  readonly eps: number;
  readonly momentum: number | 'cumulative';
  /** [c], as all of these but the last */
  readonly weight: Tensor | undefined;
  readonly bias: Tensor | undefined;
  readonly runningMean: Tensor | undefined;
  readonly runningVar: Tensor | undefined;
  /** [] of u32 */
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

  /** The running statistics start anew too. */
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
   * @throws {ShapeError} for another shape, or in training for less than two values a channel
   */
  async forward(x: Tensor): Promise<Tensor> {
    this.#checkShape(x);
    const { weight, bias, eps, runningMean, runningVar } = this;
    if (!this.isTraining && runningMean !== undefined && runningVar !== undefined) {
      // Copies: the running statistics may move on before a backward reads them.
      const mean = cast(runningMean, 'f32', { copy: true });
      const variance = cast(runningVar, 'f32');
      return normalizeBatch(x, { mean, variance, weight, bias, eps });
    }
    const { isTraining } = this; // of this forward: its backward may come after an eval()
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
   * Has the forwards that follow count as parts of one batch (micro-batches): each is normalized
   * with moments of its own, and the running statistics move once, by those of all parts together.
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

  /** The moments of a training batch, from those of this rank's rows. */
  protected joinMoments(local: BatchMoments): BatchMoments | Promise<BatchMoments> {
    return local;
  }

  /** The gradients' sums over a training batch, from those of this rank's rows. */
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
