// How instances are told from other modules, of this copy of the package or of another.

import { isModule } from '@shardweave/nn';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';

export const FSDP_BRAND: unique symbol = Symbol.for('@shardweave/fsdp/FullyShardedDataParallel');

export function isFsdp(value: unknown): value is FullyShardedDataParallel {
  return isModule(value) && FSDP_BRAND in value;
}
