// The options of OffloadModel, and what follows from them.

import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import type { DType } from '@shardweave/tensor-core';
import { OffloadConfigError } from './errors.js';

export interface OffloadOptions {
  /**
   * Where parameters, gradients and optimizer state rest. Default host memory; openDiskStore of
   * @shardweave/shard-store/node keeps them on disk. The caller closes what it passes.
   */
  readonly store?: ShardStore;
  /** Goes on from what the store has under these names in place of the model's values. Default false. */
  readonly resume?: boolean;
  /** Slices to cut a Sequential into, balanced by parameters. Default 3; at most one a layer. */
  readonly numSlices?: number;
  /** Keep only what lies between slices and run each again in backward. Default false. */
  readonly checkpointActivation?: boolean;
  /** Rows are cut into this many parts, which pass each slice one after the other. Default 1. */
  readonly numMicrobatches?: number;
  /** Parameters are computed with in this dtype, from f32 masters. Default f32. */
  readonly computeDType?: 'f32' | 'f16' | 'bf16';
  /**
   * Most bytes that the device's pool may hold, all that is on the device included. Slices are chosen
   * for it at the first call; numSlices is then not given. Default no limit.
   */
  readonly deviceBudgetBytes?: number;
  /** Bytes on the host on their way to the device before they are used. Default 256 MiB. */
  readonly loadAheadBytes?: number;
  /** Names the parameters in the store. Default 'offload'. */
  readonly name?: string;
}

// A slice or two of what fits a browser tab; a slice in demand may pass it.
const DEFAULT_LOAD_AHEAD_BYTES = 256 * 2 ** 20;

export interface ResolvedOffloadOptions {
  readonly store: ShardStore;
  readonly resume: boolean;
  readonly numSlices: number;
  readonly checkpointActivation: boolean;
  readonly numMicrobatches: number;
  readonly computeDType: DType;
  readonly deviceBudgetBytes: number | undefined;
  readonly loadAheadBytes: number;
  readonly name: string;
}

/**
 * Fills in defaults.
 * @throws {OffloadConfigError} for numbers out of range and options that contradict each other
 */
export function resolveOptions(options: OffloadOptions): ResolvedOffloadOptions {
  const { numSlices = 3, numMicrobatches = 1, deviceBudgetBytes } = options;
  for (const [name, value] of Object.entries({ numSlices, numMicrobatches })) {
    if (Number.isInteger(value) && value >= 1) continue;
    throw new OffloadConfigError(
      `offload: expected ${name} to be a whole number of at least 1, got ${value}.`,
    );
  }
  if (deviceBudgetBytes !== undefined && !(deviceBudgetBytes > 0)) {
    throw new OffloadConfigError(
      `offload: expected deviceBudgetBytes above 0, got ${deviceBudgetBytes}.`,
    );
  }
  if (deviceBudgetBytes !== undefined && options.numSlices !== undefined) {
    throw new OffloadConfigError(
      'offload: expected either numSlices or deviceBudgetBytes, got both. The budget decides how many slices there are.',
    );
  }
  return {
    store: options.store ?? createHostStore(),
    resume: options.resume ?? false,
    numSlices,
    checkpointActivation: options.checkpointActivation ?? false,
    numMicrobatches,
    computeDType: options.computeDType ?? 'f32',
    deviceBudgetBytes,
    loadAheadBytes: options.loadAheadBytes ?? DEFAULT_LOAD_AHEAD_BYTES,
    name: options.name ?? 'offload',
  };
}
