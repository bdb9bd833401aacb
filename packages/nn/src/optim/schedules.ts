// Learning rates by step. Each schedule begins with a linear warm-up. Then the rate stays constant,
// falls to 0 along half a cosine or a line, or stays constant until a final line to 0.

import { cosPi64 } from '@shardweave/dtypes/float64';
import {
  atLeast,
  checkOptions,
  checkValue,
  type OptionRules,
  oneOf,
  optional,
  whole,
} from '../check-options.js';

/** The shape of the schedule after its warm-up. 'wsd' stands for warm-up, stable, decay. */
export type ScheduleKind = 'constant' | 'cosine' | 'linear' | 'wsd';

/** Options of a learning-rate schedule: its kind, its highest rate, and its lengths in steps. */
export interface ScheduleOptions {
  readonly kind: ScheduleKind;
  /** The highest rate. */
  readonly lr: number;
  /** Steps of warm-up, W below. Default 0. */
  readonly warmupSteps?: number;
  /** Steps of the whole run, S below. 'constant' does not need it. */
  readonly totalSteps?: number;
  /** Steps of the final decay of 'wsd', D below. Only 'wsd' needs it. */
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
 * The learning rate of step s, counted from 0. In the warm-up, s < W, it is lr (s + 1) / W. After
 * that, with f = (s - W) / (S - W), it is
 * - 'constant': lr
 * - 'cosine': lr / 2 (1 + cos(pi f)) (Loshchilov and Hutter, 2017)
 * - 'linear': lr (1 - f)
 * - 'wsd': lr up to step S - D, and from there lr (S - s) / D (Hu et al., MiniCPM, 2024)
 *
 * From step S on it is 0, except for 'constant'.
 * @throws {NnConfigError} where totalSteps or decaySteps is needed and missing, and for a kind,
 * rate or count out of range
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
  return kind === 'cosine' ? (lr / 2) * (1 + cosPi64(share)) : lr * (1 - share);
}
