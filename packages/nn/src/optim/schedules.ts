// Learning rates by step: a linear warm-up, then a constant, a half cosine or a line down to 0, or
// a constant that a line ends.

import {
  atLeast,
  checkOptions,
  checkValue,
  type OptionRules,
  oneOf,
  optional,
  whole,
} from '../check-options.js';

/** `wsd`: warm-up, stable, decay. */
export type ScheduleKind = 'constant' | 'cosine' | 'linear' | 'wsd';

/** Options of a learning-rate schedule: its kind, its highest rate, and its lengths in steps. */
export interface ScheduleOptions {
  readonly kind: ScheduleKind;
  /** The highest rate. */
  readonly lr: number;
  /** Steps of warm-up, W. Default 0. */
  readonly warmupSteps?: number;
  /** Steps of the whole run, S; not needed by 'constant'. */
  readonly totalSteps?: number;
  /** Steps of decay that `wsd` ends with, D; needed by it alone. */
  readonly decaySteps?: number;
}

const RULES: OptionRules<ScheduleOptions> = {
  kind: oneOf('constant', 'cosine', 'linear', 'wsd'),
  lr: atLeast(0),
  warmupSteps: optional(whole(0)),
  totalSteps: optional(whole(1)),
  decaySteps: optional(whole(1)),
};

/**
 * The rate of step s, counted from 0: lr (s + 1) / W below W; from there on, with the share f = (s
 * - W) / (S - W) of the rest, lr, lr / 2 (1 + cos(pi f)) (Loshchilov and Hutter, 2017) or lr (1 -
 * f). `wsd` has lr up to S - D, and from there lr (S - s) / D (Hu et al., MiniCPM, 2024). 0 from S
 * on for all but the first.
 * @throws {NnConfigError} where totalSteps or decaySteps is needed and missing, and for another
 * kind, rate or count
 * @example
 * ```ts
 * import { learningRateAt } from '@shardweave/nn';
 *
 * const schedule = { kind: 'linear', lr: 1, warmupSteps: 2, totalSteps: 6 } as const;
 * const rates = [0, 1, 2, 3, 4, 5].map((step) => learningRateAt(step, schedule));
 * console.log(rates); // logs [ 0.5, 1, 1, 0.75, 0.5, 0.25 ]
 * ```
 */
export function learningRateAt(step: number, options: ScheduleOptions): number {
  checkOptions('learningRateAt', options, RULES);
  checkValue('learningRateAt', 'step', step, whole(0));
  const { kind, lr, warmupSteps = 0, totalSteps = Number.POSITIVE_INFINITY } = options;
  if (kind !== 'constant') {
    checkValue('learningRateAt', 'totalSteps', options.totalSteps, whole(1));
  }
  if (step < warmupSteps) {
    return (lr * (step + 1)) / warmupSteps;
  }
  if (kind === 'constant') {
    return lr;
  }
  if (step >= totalSteps) {
    return 0;
  }
  if (kind === 'wsd') {
    checkValue('learningRateAt', 'decaySteps', options.decaySteps, whole(1));
    return lr * Math.min(1, (totalSteps - step) / options.decaySteps!);
  }
  const share = (step - warmupSteps) / (totalSteps - warmupSteps);
  return kind === 'cosine' ? (lr / 2) * (1 + Math.cos(Math.PI * share)) : lr * (1 - share);
}
