// What decides the model of a run, and what it is computed in.

import type { BaseType, RunConfig } from '../../run-config.js';

/** The part of a run's config that decides its model and the model's first values. */
export type ModelChoice = Pick<
  RunConfig,
  'model' | 'modelConfig' | 'head' | 'lora' | 'precision' | 'seed'
>;

/** Whether a base of the type rests as numbers, and not in blocks. */
export function isNumbers(type: BaseType | undefined): type is 'f32' | 'f16' | 'bf16' {
  return type === 'f32' || type === 'f16' || type === 'bf16';
}
