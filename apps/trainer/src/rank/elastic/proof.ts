// What the ranks of an elastic job have to have alike, as a hash that they compare.

import { hash } from 'node:crypto';
import { baseModelOf } from '../../model/base-model.js';
import type { PreparedRun } from '../../run-config.js';
import { decidingText, evaluatedOn, tokensOf } from '../../saves/saved-run.js';

/** A hash of the flags, the model, the data and the numeric class; reads a model's weights. */
export async function proofOf(config: PreparedRun, numericClass: string): Promise<string> {
  const { sha256 } = await baseModelOf(config);
  const parts = [decidingText(config), sha256, tokensOf(config), evaluatedOn(config), numericClass];
  return hash('sha256', JSON.stringify(parts));
}
