// The one place that asks which strategy a run has.

import { openDdp } from './ddp.js';
import { openFsdp } from './fsdp.js';
import { openOffload } from './offload.js';
import { openSingle } from './single.js';
import type { Strategy, StrategyOptions } from './strategy.js';

/**
 * The model of a run with its first weights: random ones, or those of a model directory.
 * Collective.
 *
 * @throws {UsageError} for weights that do not fit, and for an --offload-dir that is taken
 */
export async function openStrategy(options: StrategyOptions): Promise<Strategy> {
  const { strategy, precision } = options.config;
  switch (strategy) {
    case 'single':
      // One rank in 16 bits is a sharding over one rank, which is mixed precision alone.
      return precision === 'fp32' ? openSingle(options) : openFsdp(options);
    case 'fsdp':
      return openFsdp(options);
    case 'ddp':
      return openDdp(options);
    case 'offload':
      return openOffload(options);
  }
}
