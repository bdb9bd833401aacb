// Learning rates by step: a linear warm-up, then a constant, a half cosine or a line down to 0.

import { NnConfigError } from '../errors.js';

export type ScheduleKind = 'constant' | 'cosine' | 'linear';

export interface ScheduleOptions {
  readonly kind: ScheduleKind;
  /** The highest rate. */
  readonly lr: number;
  /** Steps of warm-up, W. Default 0. */
  readonly warmupSteps?: number;
  /** Steps of the whole run, S; not needed by 'constant'. */
  readonly totalSteps?: number;
}

/**
 * The rate of step s, counted from 0: lr (s + 1) / W below W; from there on, with the share f = (s -
 * W) / (S - W) of the rest, lr, lr / 2 (1 + cos(pi f)) (Loshchilov and Hutter, 2017) or lr (1 - f). 0
 * from S on for the latter two.
 * @throws {NnConfigError} where totalSteps is needed and missing, or a count is not whole
 */
export function learningRateAt(step: number, options: ScheduleOptions): number {
  const { kind, lr, warmupSteps = 0, totalSteps = Number.POSITIVE_INFINITY } = options;
  if (!(Number.isInteger(warmupSteps) && warmupSteps >= 0)) {
    throw new NnConfigError(`learningRateAt: expected whole warmupSteps, got ${warmupSteps}.`);
  }
  if (kind !== 'constant' && !(Number.isInteger(totalSteps) && totalSteps > 0)) {
    throw new NnConfigError(`learningRateAt: ${kind} expects totalSteps, got ${totalSteps}.`);
  }
  if (step < warmupSteps) return (lr * (step + 1)) / warmupSteps;
  if (kind === 'constant') return lr;
  if (step >= totalSteps) return 0;
  const share = (step - warmupSteps) / (totalSteps - warmupSteps);
  return kind === 'cosine' ? (lr / 2) * (1 + Math.cos(Math.PI * share)) : lr * (1 - share);
}
