// Batch normalization over the rows of all ranks. This package does not depend on process groups,
// so an interface names the little that is needed of one.

import { cat, type Device, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, having, type OptionRules } from '../check-options.js';
import { BATCH_NORM_RULES, BatchNorm1d, type BatchNormOptions } from './batch-norm1d.js';
import type { BatchMoments, GradientSums } from './batch-normalize.js';

/**
 * The ranks that compute statistics together. A ProcessGroup of @shardweave/collectives is one.
 * Give it a group of its own (`await group.split(0)`), not the one that shards the parameters: that
 * one starts its gathers at different moments on each rank, and collectives of one group must start
 * in the same order on all ranks.
 */
export interface StatisticsGroup {
  readonly worldSize: number;
  /**
   * Gathers `input` of every rank into `output`, in rank order. All inputs have the same length.
   */
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
 * BatchNorm1d over the rows of all ranks as one batch. Ranks may have different numbers of rows,
 * even none. In training, forward waits for one all-gather of two numbers per channel, and backward
 * for another where x needs a gradient; evaluation needs none. Weight and bias get the gradients of
 * this rank's rows only, so that the usual averaging of gradients over ranks completes them. Every
 * rank must call it in the same order.
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
    // The variance of all rows is that within ranks plus that between them (Chan et al., 1979).
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

  /** Gathers a count and two f32 [numFeatures] from every rank, in rank order. */
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
    new Uint32Array(own.buffer)[0] = count; // as an integer, which is exact beyond 2^24 too
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
