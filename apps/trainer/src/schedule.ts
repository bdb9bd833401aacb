// The learning rate of each update.

import { learningRateAt } from '@shardweave/nn';
import type { RunConfig } from './run-config.js';

/** The rate of update `s` (from 0); see learningRateAt. */
export function learningRate(
  config: Pick<RunConfig, 'lr' | 'schedule' | 'warmup' | 'decaySteps' | 'steps'>,
  s: number,
): number {
  const { lr, schedule: kind, warmup: warmupSteps, steps: totalSteps, decaySteps } = config;
  const decay = decaySteps === undefined ? {} : { decaySteps };
  return learningRateAt(s, { kind, lr, warmupSteps, totalSteps, ...decay });
}
