// Batch normalization over the rows of all ranks. This package knows no process groups: it takes
// what it needs of one.

import { cat, type Device, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, having, type OptionRules } from '../check-options.js';
import { BATCH_NORM_RULES, BatchNorm1d, type BatchNormOptions } from './batch-norm1d.js';
import type { BatchMoments, GradientSums } from './batch-normalize.js';

/**
 * Ranks that make their statistics together; a ProcessGroup of @shardweave/collectives is one. Use
 * a sequence of its own (`await group.split(0)`): what shards parameters over the same one starts
 * its gathers at other times on each rank.
 */
export interface StatisticsGroup {
  readonly worldSize: number;
  /** `output` gets each rank's `input`, in rank order. Inputs are equally long. */
  allGather(input: Uint8Array, output: Uint8Array): Promise<void>;
}

/** Options of SyncBatchNorm: those of BatchNorm1d, and the ranks whose rows make one batch. */
export interface SyncBatchNormOptions extends BatchNormOptions {
  readonly group: StatisticsGroup;
}

const RULES: OptionRules<SyncBatchNormOptions> = {
  ...BATCH_NORM_RULES,
  group: having('a process group', 'allGather'),
};

/**
 * BatchNorm1d whose batch is that of all ranks, which may have different numbers of rows, even
 * none. A training forward waits for one all-gather of two numbers a channel, and so does its
 * backward; evaluation needs none. Weight and bias get the gradients of this rank's rows alone,
 * which whoever averages gradients over ranks joins. Call it alike on all ranks.
 */
export class SyncBatchNorm extends BatchNorm1d {
  readonly #group: StatisticsGroup;

  constructor(device: Device, options: SyncBatchNormOptions) {
    checkOptions('SyncBatchNorm', options, RULES);
    const { group, ...own } = options;
    super(device, own);
    this.#group = group;
  }

  protected override async joinMoments(local: BatchMoments): Promise<BatchMoments> {
    if (this.#group.worldSize === 1) {
      return local;
    }
    const { device, numFeatures } = this;
    const ranks = await this.#gather(local.count, local.mean, local.variance);
    const count = ranks.reduce((sum, rank) => sum + rank.count, 0);
    const mean = new Float64Array(numFeatures);
    const variance = new Float64Array(numFeatures);
    for (const rank of ranks) {
      for (let c = 0; c < numFeatures; c++) {
        mean[c]! += (rank.count / count) * rank.first[c]!;
      }
    }
    // The spread within ranks and that between them (Chan, Golub and LeVeque, 1979).
    for (const rank of ranks) {
      for (let c = 0; c < numFeatures; c++) {
        const apart = rank.first[c]! - mean[c]!;
        variance[c]! += (rank.count / count) * (rank.second[c]! + apart * apart);
      }
    }
    return {
      mean: device.tensor(Float32Array.from(mean)),
      variance: device.tensor(Float32Array.from(variance)),
      count,
    };
  }

  protected override async joinSums(local: GradientSums): Promise<GradientSums> {
    if (this.#group.worldSize === 1) {
      return local;
    }
    const { device, numFeatures } = this;
    const dy = new Float64Array(numFeatures);
    const dyXhat = new Float64Array(numFeatures);
    for (const { first, second } of await this.#gather(0, local.dy, local.dyXhat)) {
      for (let c = 0; c < numFeatures; c++) {
        dy[c]! += first[c]!;
        dyXhat[c]! += second[c]!;
      }
    }
    return {
      dy: device.tensor(Float32Array.from(dy)),
      dyXhat: device.tensor(Float32Array.from(dyXhat)),
    };
  }

  /** Every rank's count and two f32 [numFeatures], in rank order. */
  async #gather(
    count: number,
    first: Tensor,
    second: Tensor,
  ): Promise<
    { readonly count: number; readonly first: Float32Array; readonly second: Float32Array }[]
  > {
    const { numFeatures } = this;
    const { worldSize } = this.#group;
    const values = await this.device.scope(() => cat([first, second], { axis: 0 }).toArray());
    const length = 1 + 2 * numFeatures;
    const own = new Float32Array(length);
    new Uint32Array(own.buffer)[0] = count; // as an integer, exact beyond 2^24
    own.set(values, 1);
    const all = new Float32Array(length * worldSize);
    await this.#group.allGather(new Uint8Array(own.buffer), new Uint8Array(all.buffer));
    const counts = new Uint32Array(all.buffer);
    return Array.from({ length: worldSize }, (_, rank) => {
      const at = rank * length;
      return {
        count: counts[at]!,
        first: all.subarray(at + 1, at + 1 + numFeatures),
        second: all.subarray(at + 1 + numFeatures, at + length),
      };
    });
  }
}
