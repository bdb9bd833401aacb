// The learning rate of each update.

import { learningRateAt } from '@shardweave/nn';
import type { RunConfig } from './run-config.js';

/** The rate of update `s` (from 0): linear warm-up, then constant or a cosine down to 0. */
export function learningRate(
  config: Pick<RunConfig, 'lr' | 'schedule' | 'warmup' | 'steps'>,
  s: number,
): number {
  const { lr, schedule: kind, warmup: warmupSteps, steps: totalSteps } = config;
  return learningRateAt(s, { kind, lr, warmupSteps, totalSteps });
}
