// Changes, between steps, what gradients are divided by around their reduction.

import { above, FLAG, type OptionRules, optional } from '@shardweave/tensor-core/options';
import { checkOptions } from '../check-options.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';

/** What gradients are divided by before and after their sum over ranks. */
export interface GradientDivideFactors {
  /** The divisor before the sum over ranks; above 0. */
  readonly predivide: number;
  /**
   * The divisor after the sum; above 0. The result is the mean where the two multiply to the number
   * of ranks.
   */
  readonly postdivide: number;
  /** Whether nested instances are set too. Default true. */
  readonly recursive?: boolean;
}

const RULES: OptionRules<GradientDivideFactors> = {
  predivide: above(0),
  postdivide: above(0),
  recursive: optional(FLAG),
};

/**
 * Sets the factors from the next reduction on. It must be called alike on all ranks, which compare
 * the factors at each backward's first reduction; the call itself does not communicate.
 * @throws {FsdpConfigError} for factors that are not above 0
 * @throws {FsdpStateError} unless the instance is idle; nothing is set
 */
export function setGradientDivideFactors(
  fsdp: FullyShardedDataParallel,
  factors: GradientDivideFactors,
): void {
  checkOptions('setGradientDivideFactors', factors, RULES);
  const { predivide, postdivide, recursive = true } = factors;
  const instances = recursive ? fsdp.instances() : [fsdp];
  for (const instance of instances) {
    instance.assertState('idle');
  }
  for (const { divideFactors } of instances) {
    Object.assign(divideFactors, { predivide, postdivide });
  }
}
