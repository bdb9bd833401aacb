// The learning rate of each update.

import { learningRateAt } from '@shardweave/nn';
import type { RunConfig } from './run-config.js';

/** What decides the rate of each update. */
export type RateConfig = Pick<
  RunConfig,
  'lr' | 'minLr' | 'schedule' | 'warmup' | 'decaySteps' | 'steps'
>;

/**
 * The rate of update `s` (from 0); see learningRateAt. Behind the warm-up, what falls is the part
 * above --min-lr.
 */
export function learningRate(config: RateConfig, s: number): number {
  const { lr, schedule: kind, warmup: warmupSteps, steps: totalSteps, decaySteps } = config;
  const floor = s < warmupSteps || kind === 'constant' ? 0 : config.minLr;
  const decay = decaySteps === undefined ? {} : { decaySteps };
  return floor + learningRateAt(s, { kind, lr: lr - floor, warmupSteps, totalSteps, ...decay });
}
