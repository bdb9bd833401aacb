// Whether a rank's state fits its device, asked before there is any of it. A WebAssembly memory ends at
// 4 GiB, and a model that passes it would otherwise be refused somewhere in its first step.

import { parameterCount } from '@shardweave/nn';
import type { BackendInfo } from '@shardweave/tensor-core';
import { UsageError } from '../errors.js';
import { formatBytes, formatCount } from '../output/format.js';
import type { RunConfig } from '../run-config.js';

/** A parameter, its gradient, and two moments of AdamW, all f32. */
const STATE_BYTES = 16;

/**
 * Activations come on top, so what passes may still run out of memory; what is refused would for sure. A
 * GPU says only in the end how much it has.
 * @throws {UsageError} that says what would fit
 */
export function checkRoom(config: RunConfig, { kind, limits }: BackendInfo): void {
  const { strategy, ranks, cpuOffload, offloadDir } = config;
  const restsOnHost = strategy === 'offload' || cpuOffload || offloadDir !== undefined;
  if (kind !== 'cpu' || restsOnHost) {
    return;
  }
  const params = parameterCount(config.modelConfig);
  const shards = strategy === 'fsdp' ? ranks : 1;
  // Beside adapters a frozen model has its values alone.
  const each = config.lora === undefined ? STATE_BYTES : config.precision === 'fp32' ? 4 : 2;
  const bytes = (params * each) / shards;
  const limit = limits.maxBufferBytes;
  if (bytes > limit) {
    throw new UsageError(
      `memory: expected a rank's parameters, gradients and moments in the ${formatBytes(limit)} of one WebAssembly memory, got ${formatBytes(bytes)} (${strategy}). What fits: up to ${formatCount(Math.floor((limit * shards) / each))} parameters like this, fsdp over ${Math.ceil((params * each) / limit)} ranks or more, --cpu-offload, or --strategy offload.`,
    );
  }
}
