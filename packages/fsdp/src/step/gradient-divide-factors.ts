// What gradients are divided by around their reduction, changed between steps.

import { FsdpConfigError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';

/** What gradients are divided by before and after their sum over ranks. */
export interface GradientDivideFactors {
  /** Before the sum over ranks; above 0. */
  readonly predivide: number;
  /** After it; above 0. The mean over ranks needs a product of as many as there are ranks. */
  readonly postdivide: number;
  /** Nested instances too. Default true. */
  readonly recursive?: boolean;
}

/**
 * Sets the factors from the next reduction on. Alike on all ranks, which compare them at
 * each backward's first reduction; no communication of its own.
 * @throws {FsdpConfigError} for factors that are not above 0
 * @throws {FsdpStateError} unless idle; nothing is set
 */
export function setGradientDivideFactors(
  fsdp: FullyShardedDataParallel,
  { predivide, postdivide, recursive = true }: GradientDivideFactors,
): void {
  if (!(predivide > 0 && postdivide > 0)) {
    throw new FsdpConfigError(
      `setGradientDivideFactors: expected factors above 0, got ${predivide} and ${postdivide}.`,
    );
  }
  const instances = recursive ? fsdp.instances() : [fsdp];
  for (const instance of instances) {
    instance.assertState('idle');
  }
  for (const { divideFactors } of instances) {
    Object.assign(divideFactors, { predivide, postdivide });
  }
}
