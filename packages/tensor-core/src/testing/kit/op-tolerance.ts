// How far an op and its gradient may be from their float64 twin, which gets the inputs as they are
// stored: |got - want| <= absolute + relative * |want|. Values in the cases are about 1. Single
// kernels are compared with the reference device under tolerance.ts.

import type { Tolerance } from './tolerance.js';

/** The dtypes in which floating-point ops are checked. */
export type FloatDType = 'f32' | 'f16' | 'bf16';

export interface OpTolerance {
  readonly value: Tolerance;
  readonly gradient: Tolerance;
}

/**
 * The tolerances by dtype. In f32, WGSL's exp, log and tanh are within about 2e-5 (see
 * tolerance.ts), sums have up to 65 terms, and gradients chain several of these. In 16 bits an
 * output is rounded once, by at most half of 2^-10 (f16) or 2^-7 (bf16) relative, and f32's error
 * may carry it over a rounding border. Gradients are rounded at each op of the backward rule and
 * add a dozen such terms. A case that stores more in between says how often (`roundings`).
 */
export const OP_TOLERANCES: Readonly<Record<FloatDType, OpTolerance>> = {
  f32: {
    value: { relative: 2e-5, absolute: 1e-5 },
    gradient: { relative: 5e-5, absolute: 5e-5 },
  },
  f16: {
    value: { relative: 2 ** -10, absolute: 2 ** -14 },
    gradient: { relative: 2 ** -8, absolute: 2 ** -9 },
  },
  bf16: {
    value: { relative: 2 ** -7, absolute: 2 ** -11 },
    gradient: { relative: 2 ** -5, absolute: 2 ** -6 },
  },
};
