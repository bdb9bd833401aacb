// How users tell instances from other modules.

import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';
import { isInstance } from './tree/tree-instance.js';

/** Whether a module is an instance, of this copy of the package or of another. */
export function isFsdp(value: unknown): value is FullyShardedDataParallel {
  return isInstance(value);
}
