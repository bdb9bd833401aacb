// The learning rate of each update.

import { learningRateAt } from '@shardweave/nn';
import type { RunConfig } from './run-config.js';

/** What decides the rate of each update. */
export type RateConfig = Pick<RunConfig, 'lr' | 'schedule' | 'warmup' | 'decaySteps' | 'steps'>;

/** The rate of update `s` (from 0); see learningRateAt. */
export function learningRate(config: RateConfig, s: number): number {
  const { lr, schedule: kind, warmup: warmupSteps, steps: totalSteps, decaySteps } = config;
  const decay = decaySteps === undefined ? {} : { decaySteps };
  return learningRateAt(s, { kind, lr, warmupSteps, totalSteps, ...decay });
}
