// The options of OffloadModel, and what follows from them.

import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import type { DType } from '@shardweave/tensor-core';
import {
  allOptional,
  FLAG,
  having,
  type OptionRules,
  oneOf,
  optionChecks,
  whole,
} from '@shardweave/tensor-core/options';
import { OffloadConfigError } from './errors.js';

/** Where the state of a model rests, and how the model is cut into slices. */
export interface OffloadOptions {
  /**
   * Where parameters, gradients and optimizer state rest. Default host memory; openDiskStore of
   * @shardweave/shard-store/node keeps them on disk. The caller closes a store that it passes.
   */
  readonly store?: ShardStore;
  /**
   * true: go on from what the store has under `name` in place of the model's values: parameters,
   * buffers, optimizer state and the device's random state. false: begin anew, whatever is there.
   * Default: begin anew, unless the store has a model that has been trained, which is an error.
   */
  readonly resume?: boolean;
  /**
   * The number of slices that a Sequential is cut into, balanced by parameters; at most one per
   * layer. Default 3. A list of modules is cut already.
   */
  readonly numSlices?: number;
  /** Keep only what lies between slices, and run each slice again in backward. Default false. */
  readonly checkpointActivation?: boolean;
  /**
   * The number of parts that rows are cut into, which pass each slice one after another. Default 1.
   */
  readonly numMicrobatches?: number;
  /** The dtype in which parameters are computed with, from f32 masters. Default f32. */
  readonly computeDType?: 'f32' | 'f16' | 'bf16';
  /**
   * The most bytes that the device's pool may hold, everything on the device included. Slices are
   * chosen for it at the first call, so numSlices must not be given. Default no limit.
   */
  readonly deviceBudgetBytes?: number;
  /**
   * The most bytes on the host that are on their way to the device before they are used. Default
   * 256 MiB.
   */
  readonly loadAheadBytes?: number;
  /** The name under which parameters are in the store. Default 'offload'. */
  readonly name?: string;
}

// This holds a slice or two of a model that fits a browser tab. A slice that is needed at once may
// exceed it.
const DEFAULT_LOAD_AHEAD_BYTES = 256 * 2 ** 20;

export interface ResolvedOffloadOptions {
  readonly store: ShardStore;
  readonly resume: boolean | undefined;
  readonly numSlices: number;
  readonly checkpointActivation: boolean;
  readonly numMicrobatches: number;
  readonly computeDType: DType;
  readonly deviceBudgetBytes: number | undefined;
  readonly loadAheadBytes: number;
  readonly name: string;
}

/** Options of fairscale and others that this package lacks, each with what to do instead. */
const ADVICE: Readonly<Record<string, string>> = {
  device: "The model's own device is used.",
  offloadDevice: 'Use store: it says where parameters rest.',
  optimizer: 'Make the optimizer on model.parameters().',
  mixedPrecision: 'Use computeDType.',
  moveParamsToCpu: 'Parameters rest in the store, by default in host memory.',
  processGroup: 'It has none: wrap the slices in FullyShardedDataParallel for several ranks.',
};

const RULES: OptionRules<OffloadOptions> = allOptional({
  store: having('a ShardStore', 'read', 'write', 'commit'),
  resume: FLAG,
  numSlices: whole(1),
  checkpointActivation: FLAG,
  numMicrobatches: whole(1),
  computeDType: oneOf('f32', 'f16', 'bf16'),
  deviceBudgetBytes: {
    expected: 'a number above 0',
    holds: (value) => typeof value === 'number' && value > 0,
  },
  loadAheadBytes: {
    expected: 'a number of at least 0',
    holds: (value) => typeof value === 'number' && value >= 0,
  },
  name: {
    // A slash ends a flat parameter's name in the store.
    expected: "text without '/'",
    holds: (value) => typeof value === 'string' && /^[^/]+$/.test(value),
  },
});

const { checkOptions } = optionChecks(OffloadConfigError, ADVICE);

/**
 * Fills in defaults.
 * @throws {OffloadConfigError} for options that are unknown, out of range or in contradiction
 */
export function resolveOptions(options: OffloadOptions): ResolvedOffloadOptions {
  checkOptions('offload', options, RULES);
  const { deviceBudgetBytes } = options;
  if (deviceBudgetBytes !== undefined && options.numSlices !== undefined) {
    throw new OffloadConfigError(
      'offload: expected either numSlices or deviceBudgetBytes, got both. The budget decides how many slices there are.',
    );
  }
  return {
    store: options.store ?? createHostStore(),
    resume: options.resume,
    numSlices: options.numSlices ?? 3,
    checkpointActivation: options.checkpointActivation ?? false,
    numMicrobatches: options.numMicrobatches ?? 1,
    computeDType: options.computeDType ?? 'f32',
    deviceBudgetBytes,
    loadAheadBytes: options.loadAheadBytes ?? DEFAULT_LOAD_AHEAD_BYTES,
    name: options.name ?? 'offload',
  };
}
