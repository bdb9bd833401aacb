// How far a kernel of a backend may be from the same kernel of the reference device:
// |got - want| <= absolute + relative * |want|. Whole ops, whose gradients chain several kernels,
// are held to their twins by op-tolerance.ts.

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

/** For f32 results. One f32 rounding is 6e-8 relative. */
export const TOLERANCES: Readonly<Record<ToleranceName, Tolerance>> = {
  /** Bits, any NaN for any NaN: moves, casts, integers, masks. */
  exact: { relative: 0, absolute: 0 },
  /** A few roundings; WGSL allows 2.5 units for a division and more for a square root. */
  arithmetic: { relative: 1e-6, absolute: 1e-6 },
  /**
   * WGSL allows exp 3 + 2|x| units, log 5e-7 absolute, tanh what its exps make of it; |x| <= 20.
   */
  transcendental: { relative: 2e-5, absolute: 5e-6 },
  /**
   * As transcendental, for results down to the smallest normal f32: exp(-87) is within 177 units,
   * and f32 rounds a score of 87 by 4e-6, which is as much relative to its exponential.
   */
  tail: { relative: 3e-5, absolute: 2 ** -126 },
  /** Up to 1000 terms of size 1 in any fixed order: the roundings of partial sums of about 30 walk
   * to 2e-5 at worst. The cpu device uses a tenth of it. */
  sum: { relative: 2e-5, absolute: 5e-5 },
  /**
   * 1e5 terms between 0 and 1 in any fixed order, relative to a sum of 5e4: one running f32 sum
   * walks by half a unit of 2^-24 a term, at worst of one sign where it is kept in one accumulator.
   */
  longSum: { relative: 1e-4, absolute: 0 },
  /** Values of about 1000 whose differences of about 1 matter: 1000 * 6e-8 * a few roundings.
   * A variance from E[x^2] - E[x]^2 in f32 misses it by far. */
  cancelling: { relative: 2e-3, absolute: 2e-3 },
};

/**
 * What rounding once to 16 bits adds: a whole unit, for f32's error may cross a rounding border.
 */
const STORAGE: Readonly<Record<DType, Tolerance>> = {
  f32: { relative: 0, absolute: 0 },
  f16: { relative: 2 ** -10, absolute: 2 ** -24 },
  bf16: { relative: 2 ** -7, absolute: 2 ** -133 },
  i32: { relative: 0, absolute: 0 },
  u32: { relative: 0, absolute: 0 },
};

/** The tolerance of results stored as `dtype`. */
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
