// The specification of what buckets do: after backward, one all-reduce for each parameter, one
// after another. Without buckets and overlap it is slow where parameters are many and small.

import type { ProcessGroup } from '@shardweave/collectives';
import type { ReduceDType } from '@shardweave/dtypes';
import type { Tensor } from '@shardweave/tensor-core';
import { above, FLAG, type OptionRules, optional } from '@shardweave/tensor-core/options';
import { checkOptions, GROUP } from '../check-options.js';

/** The group that gradients are summed over, and how the sums are divided. */
export interface NaiveAllReduceOptions {
  readonly processGroup: ProcessGroup;
  /** See DdpOptions. Default 1. */
  readonly gradientPredivideFactor?: number;
  /** See DdpOptions. Default true. */
  readonly gradientAverage?: boolean;
}

const RULES: OptionRules<NaiveAllReduceOptions> = {
  processGroup: GROUP,
  gradientPredivideFactor: optional(above(0)),
  gradientAverage: optional(FLAG),
};

/**
 * Averages the gradients of `parameters` over ranks, in place and in their order. Collective; every
 * rank must have gradients for the same parameters.
 */
export async function naiveAllReduce(
  parameters: Iterable<Tensor>,
  options: NaiveAllReduceOptions,
): Promise<void> {
  checkOptions('naiveAllReduce', options, RULES);
  const { processGroup: group, gradientPredivideFactor: predivide = 1 } = options;
  const postdivide = (options.gradientAverage ?? true) ? group.worldSize / predivide : 1;
  let index = 0;
  for (const { grad, device } of parameters) {
    // The identity makes ranks notice that they divide differently, or have other gradients.
    const identity = `naive ${index++}, divided by ${predivide} and ${postdivide}`;
    if (grad === undefined || grad.size === 0) {
      continue;
    }
    const scale = (factor: number) => {
      const view = grad.view();
      device.backend.run('affine', { x: view, out: view, scale: factor, shift: 0 });
    };
    if (predivide !== 1) {
      scale(1 / predivide);
    }
    const bytes = await grad.storage.read();
    const dtype = grad.dtype as ReduceDType;
    await group.allReduce(bytes, bytes, { dtype, op: 'sum', tag: 'naive', identity });
    grad.storage.write(bytes);
    scale(1 / postdivide);
  }
}
