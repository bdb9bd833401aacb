// The learning rate of each update.

import type { RunConfig } from './run-config.js';

/** The rate of update `s` (from 0): linear warm-up, then constant or a cosine down to 0. */
export function learningRate(
  config: Pick<RunConfig, 'lr' | 'schedule' | 'warmup' | 'steps'>,
  s: number,
): number {
  const { lr, warmup, steps } = config;
  if (s < warmup) return (lr * (s + 1)) / warmup;
  if (config.schedule === 'constant') return lr;
  return (lr / 2) * (1 + Math.cos((Math.PI * (s - warmup)) / (steps - warmup)));
}
