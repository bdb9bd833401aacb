// The test by which users tell instances from other modules.

import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';
import { isInstance } from './tree/tree-instance.js';

/** Whether `value` is an instance, made by this copy of the package or by another one. */
export function isFsdp(value: unknown): value is FullyShardedDataParallel {
  return isInstance(value);
}
