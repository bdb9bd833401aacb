// The rules that this package's options follow, and the check of them.

import { isTensor } from '@shardweave/tensor-core';
import {
  above,
  allOptional,
  FLAG,
  having,
  type OptionRules,
  oneOf,
  optional,
  optionChecks,
  TEXT,
  whole,
} from '@shardweave/tensor-core/options';
import { FsdpConfigError } from './errors.js';
import type { FsdpOptions } from './options.js';
import type { OffloadConfig } from './unit/placement.js';

/** A process group of any copy of collectives. */
export const GROUP = having(
  'a process group of @shardweave/collectives',
  'allGather',
  'reduceScatter',
  'split',
);

const DTYPE = oneOf('f32', 'f16', 'bf16');

const STORE = having('a ShardStore of @shardweave/shard-store', 'read', 'write', 'commit');

const STATE_DICT_RULES = allOptional({
  stateDictDevice: oneOf('host', 'device'),
  stateDictOnRank0Only: FLAG,
});

const RULES: OptionRules<FsdpOptions> = {
  processGroup: GROUP,
  ...STATE_DICT_RULES,
  ...allOptional({
    processGroupReduceScatter: {
      expected: "'reduceScatter', 'default' or a process group",
      holds: (value) => value === 'reduceScatter' || value === 'default' || GROUP.holds(value),
    },
    replicateGroup: GROUP,
    flattenParameters: {
      expected: 'true, false or groups { name, params }',
      holds: (value) =>
        FLAG.holds(value) || (Array.isArray(value) && value.every(isParameterGroup)),
    },
    shardTrained: FLAG,
    vocabParallel: FLAG,
    syncModuleStates: FLAG,
    reshardAfterForward: FLAG,
    disableReshardOnRoot: FLAG,
    mixedPrecision: FLAG,
    computeDType: DTYPE,
    bufferDType: DTYPE,
    forceInputToFp32: FLAG,
    fp32ReduceScatter: FLAG,
    gradientGroups: whole(1),
    gradientPredivideFactor: above(0),
    bucketCapMb: {
      expected: 'a number of MiB',
      holds: (value) => typeof value === 'number' && !Number.isNaN(value),
    },
    gatherCapBytes: {
      expected: 'a number of bytes of at least 0',
      holds: (value) => typeof value === 'number' && value >= 0,
    },
    noBroadcastOptimState: FLAG,
    allowResetParameters: FLAG,
    verbose: FLAG,
    findUnusedParameters: FLAG,
    name: TEXT,
    moveParamsToCpu: FLAG,
    moveGradsToCpu: FLAG,
    offloadConfig: having('an object { store, resume }'),
  }),
};

const OFFLOAD_RULES: OptionRules<OffloadConfig> = { store: STORE, resume: optional(FLAG) };

/** Options that fairscale and PyTorch have and this package lacks, each with what to do instead. */
const ADVICE: Readonly<Record<string, string>> = {
  computeDevice: "A module's device is where it computes.",
  clearAutocastCache: 'Nothing casts by ambient mode.',
  shardingStrategy: 'Use reshardAfterForward, and replicateGroup for hybrid sharding.',
  cpuOffload: 'Use moveParamsToCpu.',
  autoWrapPolicy: 'Use autoWrap(module, policy, wrap).',
  backwardPrefetch: 'Gathers start ahead as far as gatherCapBytes allows.',
  forwardPrefetch: 'Gathers start ahead as far as gatherCapBytes allows.',
  limitAllGathers: 'Use gatherCapBytes.',
  useOrigParams: 'Names and parameter groups are always those of the bare module.',
  paramInitFn: "Use nn's deferInit.",
  deviceId: 'A module has one device.',
  mesh: 'Use processGroup, and replicateGroup for hybrid sharding.',
  deviceMesh: 'Use processGroup, and replicateGroup for hybrid sharding.',
  group: 'Use processGroup.',
  mpPolicy: 'Use mixedPrecision, with computeDType and fp32ReduceScatter.',
  paramDtype: 'Use mixedPrecision, with computeDType.',
  reduceDtype: 'Use fp32ReduceScatter.',
  offloadPolicy: 'Use moveParamsToCpu.',
  ignoredParams: 'Wrap the modules beside them alone.',
  wrap: 'fullyShard has it.',
};

export const { checkOptions, checkValue } = optionChecks(FsdpConfigError, ADVICE);

/**
 * @throws {FsdpConfigError} where `options` is not an object, has an unknown option, or has a value
 * that breaks the option's rule
 */
export function checkFsdpOptions(options: unknown, owner = 'fsdp'): void {
  checkOptions<FsdpOptions>(owner, options, RULES);
  const { offloadConfig } = options as Partial<FsdpOptions>;
  if (offloadConfig !== undefined) {
    checkOptions<OffloadConfig>('fsdp: offloadConfig', offloadConfig, OFFLOAD_RULES);
  }
}

function isParameterGroup(value: unknown): boolean {
  const { name, params } = (value ?? {}) as { readonly name?: unknown; readonly params?: unknown };
  return typeof name === 'string' && Array.isArray(params) && params.every(isTensor);
}
