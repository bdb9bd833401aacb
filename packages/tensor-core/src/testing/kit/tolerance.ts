// How far a kernel of a backend may be from the same kernel of the reference device: |got - want|
// <= absolute + relative * |want|. Whole ops, whose gradients chain several kernels, are compared
// with their twins under op-tolerance.ts.

import type { DType } from '@shardweave/dtypes';

export interface Tolerance {
  readonly relative: number;
  readonly absolute: number;
}

export type ToleranceName =
  | 'exact'
  | 'arithmetic'
  | 'transcendental'
  | 'tail'
  | 'sum'
  | 'longSum'
  | 'cancelling';

/** The tolerances of f32 results. One f32 rounding is 6e-8 relative. */
const TOLERANCES: Readonly<Record<ToleranceName, Tolerance>> = {
  /** Equal bits, except that any NaN equals any other, for moves, casts, integers and masks. */
  exact: { relative: 0, absolute: 0 },
  /** A few roundings. WGSL allows 2.5 units for a division and more for a square root. */
  arithmetic: { relative: 1e-6, absolute: 1e-6 },
  /**
   * What WGSL allows for |x| <= 20: 3 + 2|x| units for exp, 5e-7 absolute for log, and for tanh
   * what follows from its exps.
   */
  transcendental: { relative: 2e-5, absolute: 5e-6 },
  /**
   * The same for results down to the smallest normal f32. exp(-87) is within 177 units, and f32
   * rounds a score of 87 by 4e-6, which is a relative error of 4e-6 in its exponential.
   */
  tail: { relative: 3e-5, absolute: 2 ** -126 },
  /**
   * Sums of up to 1000 terms of size 1 in any fixed order. Partial sums are about 30, and their
   * roundings add up to 2e-5 at worst. The cpu device needs a tenth of it.
   */
  sum: { relative: 2e-5, absolute: 5e-5 },
  /**
   * Sums of 1e5 terms between 0 and 1 in any fixed order, relative to a sum of 5e4. A single f32
   * accumulator errs by up to half a unit at each term, at worst always with one sign.
   */
  longSum: { relative: 1e-4, absolute: 0 },
  /**
   * Values of about 1000 whose differences of about 1 matter, so that a few roundings of 1000 *
   * 6e-8 show. A variance computed as E[x^2] - E[x]^2 in f32 is off by far more.
   */
  cancelling: { relative: 2e-3, absolute: 2e-3 },
};

/**
 * What rounding once to 16 bits adds to a tolerance: a whole unit, since f32's error may carry a
 * value over a rounding border.
 */
const STORAGE: Readonly<Record<DType, Tolerance>> = {
  f32: { relative: 0, absolute: 0 },
  f16: { relative: 2 ** -10, absolute: 2 ** -24 },
  bf16: { relative: 2 ** -7, absolute: 2 ** -133 },
  i32: { relative: 0, absolute: 0 },
  u32: { relative: 0, absolute: 0 },
};

/** Returns the tolerance of results that are stored as `dtype`. */
export function toleranceOf(name: ToleranceName, dtype: DType): Tolerance {
  const computed = TOLERANCES[name];
  const stored = STORAGE[dtype];
  if (name === 'exact') {
    return computed;
  }
  return {
    relative: computed.relative + stored.relative,
    absolute: computed.absolute + stored.absolute,
  };
}
