// Joins the moments of a batch that passes a layer in parts (micro-batches), one part after the
// other.

import { add, affine, cast, square, sub } from '@shardweave/tensor-core';
import type { BatchMoments } from './batch-normalize.js';

export class BatchParts {
  /**
   * The moments so far of each use of the layer. A layer that a model calls twice per forward has
   * two entries here: all first calls joined, and all second calls joined.
   */
  readonly #uses: BatchMoments[] = [];
  #next = 0;

  /** Begins the next part, whose first `add` belongs to the first use again. */
  beginPart(): void {
    this.#next = 0;
  }

  /** Joins the moments of the next use in this part to those of the same use in earlier parts. */
  add(moments: BatchMoments): void {
    const before = this.#uses[this.#next];
    this.#uses[this.#next] = mergeMoments(before, moments);
    this.#next += 1;
    if (before !== undefined) {
      free(before);
    }
  }

  /** Passes the whole batch's moments of each use to `visit`, then frees them. */
  end(visit: (moments: BatchMoments) => void): void {
    for (const moments of this.#uses) {
      visit(moments);
    }
    this.abandon();
  }

  abandon(): void {
    for (const moments of this.#uses.splice(0)) {
      free(moments);
    }
  }
}

/**
 * The moments of both sets of values together (Chan et al., 1979). They outlive the current scope.
 */
function mergeMoments(before: BatchMoments | undefined, after: BatchMoments): BatchMoments {
  const { device } = after.mean;
  const { mean, variance, count } = device.noGrad(() =>
    device.scope(() => {
      if (before === undefined) {
        const copy = { copy: true };
        return {
          ...after,
          mean: cast(after.mean, 'f32', copy),
          variance: cast(after.variance, 'f32', copy),
        };
      }
      const count = before.count + after.count;
      const part = after.count / count;
      const shift = sub(after.mean, before.mean);
      const within = add(affine(before.variance, 1 - part, 0), affine(after.variance, part, 0));
      return {
        mean: add(before.mean, affine(shift, part, 0)),
        variance: add(within, affine(square(shift), part * (1 - part), 0)),
        count,
      };
    }),
  );
  return { mean: mean.keep(), variance: variance.keep(), count };
}

function free({ mean, variance }: BatchMoments): void {
  mean.dispose();
  variance.dispose();
}
