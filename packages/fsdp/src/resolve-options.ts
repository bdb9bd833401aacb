// Everything that follows from the options of FullyShardedDataParallel.

import type { DType } from '@shardweave/tensor-core';
import { checkFsdpOptions } from './check-options.js';
import { FsdpConfigError } from './errors.js';
import type { FsdpOptions, ParameterGroup } from './options.js';
import { RankGroups } from './ranks/rank-groups.js';
import { resolvePlacement } from './unit/placement.js';
import type { UnitOptions } from './unit/sharded-unit.js';

// Gathering ahead of use occupies only the wire and host memory. This much holds several units of a
// small model, and one or two of a large one.
const DEFAULT_GATHER_CAP_BYTES = 64 * 2 ** 20;

// The default of fairscale.
const DEFAULT_BUCKET_CAP_MB = 25;

export interface ResolvedFsdpOptions extends UnitOptions {
  readonly flattenParameters: boolean | readonly ParameterGroup[];
  /** Whether ranks use their parts of frozen token tables. */
  readonly vocabParallel: boolean;
  readonly syncModuleStates: boolean;
  readonly reshardAfterForward: boolean;
  readonly disableReshardOnRoot: boolean;
  readonly isMixed: boolean;
  readonly bufferDType: DType;
  readonly forceInputToFp32: boolean;
  readonly bucketCapBytes: number;
  readonly gatherCapBytes: number;
  readonly findUnusedParameters: boolean;
  readonly stateDict: {
    readonly stateDictDevice: 'host' | 'device';
    readonly stateDictOnRank0Only: boolean;
  };
  readonly gradientGroups: number | undefined;
  readonly noBroadcastOptimState: boolean | undefined;
  readonly allowResetParameters: boolean;
  readonly isVerbose: boolean;
}

/**
 * Fills in defaults.
 * @throws {FsdpConfigError} for options that contradict each other, that are unknown, or that have
 * a wrong type
 */
export function resolveOptions(options: FsdpOptions): ResolvedFsdpOptions {
  checkFsdpOptions(options);
  const isMixed = options.mixedPrecision ?? false;
  if (options.fp32ReduceScatter === true && !isMixed) {
    throw new FsdpConfigError(
      'fsdp: expected mixedPrecision with fp32ReduceScatter, got full precision. Gradients are f32 already; drop the option.',
    );
  }
  const computeDType = options.computeDType ?? (isMixed ? 'bf16' : 'f32');
  if (options.forceInputToFp32 === true && computeDType !== 'f32') {
    throw new FsdpConfigError(
      `fsdp: expected computation in f32 with forceInputToFp32, got ${computeDType}. Drop one of them.`,
    );
  }
  const groups = new RankGroups(options);
  const { worldSize } = groups.processGroup;
  const reduce = groups.processGroupReduceScatter;
  const reduceSize = typeof reduce === 'string' ? worldSize : reduce.worldSize;
  if (reduceSize !== worldSize) {
    throw new FsdpConfigError(
      `fsdp: expected processGroupReduceScatter of ${worldSize} ranks as processGroup has, got ${reduceSize}.`,
    );
  }
  const { numRanks } = groups;
  const { gradientGroups } = options;
  requireGroups(options);
  requireSharding(options);
  requireVocabParallel(options);
  const numParts = gradientGroups ?? numRanks;
  const predivide = options.gradientPredivideFactor ?? defaultPredivide(numParts);
  const reducesInF32 = options.fp32ReduceScatter === true || gradientGroups !== undefined;
  const bucketCapMb = options.bucketCapMb ?? DEFAULT_BUCKET_CAP_MB;
  return {
    groups,
    shardTrained: options.shardTrained ?? true,
    flattenParameters: options.flattenParameters ?? true,
    vocabParallel: options.vocabParallel ?? false,
    syncModuleStates: options.syncModuleStates ?? true,
    reshardAfterForward: options.reshardAfterForward ?? true,
    disableReshardOnRoot: options.disableReshardOnRoot ?? true,
    isMixed,
    masterDType: isMixed ? 'f32' : computeDType,
    bufferDType: options.bufferDType ?? computeDType,
    forceInputToFp32: options.forceInputToFp32 ?? false,
    computeDType,
    reduceDType: reducesInF32 ? 'f32' : computeDType,
    divide: { predivide, postdivide: numParts / predivide },
    placement: resolvePlacement(options),
    isBucketed: bucketCapMb > 0,
    bucketCapBytes: Math.max(0, bucketCapMb) * 2 ** 20,
    gatherCapBytes: options.gatherCapBytes ?? DEFAULT_GATHER_CAP_BYTES,
    findUnusedParameters: options.findUnusedParameters ?? false,
    gradientGroups,
    stateDict: {
      stateDictDevice: options.stateDictDevice ?? 'host',
      stateDictOnRank0Only: options.stateDictOnRank0Only ?? false,
    },
    noBroadcastOptimState: options.noBroadcastOptimState,
    allowResetParameters: options.allowResetParameters ?? false,
    isVerbose: options.verbose ?? false,
  };
}

/** @throws {FsdpConfigError} for options that do not go with gradientGroups */
function requireGroups({
  gradientGroups,
  replicateGroup,
  findUnusedParameters,
  fp32ReduceScatter,
  mixedPrecision,
}: FsdpOptions): void {
  const other =
    replicateGroup !== undefined
      ? 'replicateGroup: groups are dealt out to the ranks of one process group'
      : findUnusedParameters === true
        ? 'findUnusedParameters: every group has a gradient of all parameters'
        : fp32ReduceScatter === false && mixedPrecision === true
          ? 'fp32ReduceScatter false: sums of groups are f32'
          : undefined;
  if (gradientGroups !== undefined && other !== undefined) {
    throw new FsdpConfigError(
      `fsdp: expected no gradientGroups, got ${gradientGroups} with ${other}.`,
    );
  }
}

/** @throws {FsdpConfigError} for options that do not go with shardTrained: false */
function requireSharding(options: FsdpOptions): void {
  const { shardTrained = true, replicateGroup, offloadConfig } = options;
  const isOff = options.moveParamsToCpu === true || options.moveGradsToCpu === true;
  const other =
    replicateGroup !== undefined
      ? 'replicateGroup: all ranks of processGroup are replicas of what is trained'
      : isOff || offloadConfig !== undefined
        ? 'moveParamsToCpu, moveGradsToCpu or offloadConfig: what is trained rests whole on the device'
        : undefined;
  if (!shardTrained && other !== undefined) {
    throw new FsdpConfigError(`fsdp: expected no shardTrained: false, got it with ${other}.`);
  }
}

/**
 * The power of two that gradients are divided by before their sum: doubled from 1 as long as it
 * divides `worldSize` and is smaller than `worldSize` / factor. 8 ranks: 4; 6 ranks: 4; 7 ranks: 2.
 */
export function defaultPredivide(worldSize: number): number {
  let factor = 1;
  while (worldSize % factor === 0 && worldSize / factor > factor) {
    factor *= 2;
  }
  return factor;
}

/** @throws {FsdpConfigError} for options that do not go with vocabParallel */
function requireVocabParallel(options: FsdpOptions): void {
  const isOff = options.moveParamsToCpu === true || options.offloadConfig !== undefined;
  const [other, why] =
    options.gradientGroups !== undefined
      ? ['gradientGroups', 'Parts of a table round by the number of ranks']
      : options.findUnusedParameters === true
        ? ['findUnusedParameters', 'All ranks compute with a table together']
        : Array.isArray(options.flattenParameters)
          ? ['groups in flattenParameters', 'A table is a flat parameter of its own']
          : isOff
            ? ['moveParamsToCpu or offloadConfig', 'A table computes where it rests']
            : [];
  if (options.vocabParallel === true && other !== undefined) {
    throw new FsdpConfigError(
      `fsdp: expected vocabParallel or ${other}, got both. ${why}: leave one out.`,
    );
  }
}
