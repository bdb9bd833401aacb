// The options of DistributedDataParallel, and what follows from them.

import type { ProcessGroup } from '@shardweave/collectives';
import { isTensor, type Tensor } from '@shardweave/tensor-core';
import {
  allOptional,
  FLAG,
  having,
  type OptionRule,
  type OptionRules,
  TEXT,
} from '@shardweave/tensor-core/options';
import type { BucketSizes } from './bucket-layout.js';
import { checkOptions, GROUP } from './check-options.js';
import type { CommunicationHook } from './communication-hooks/communication-hook.js';
import { DdpConfigError } from './errors.js';

/**
 * The options that only apex has, under its names: buckets by elements or by trigger, groups that
 * buckets take in turn, gradients as views, ranges of a trace.
 */
export interface ApexOptions {
  /**
   * The number of elements from which a bucket is full, the first one included (apex). Default:
   * buckets are full by bytes, as firstBucketBytes and bucketCapBytes say. Not used with
   * allreduceTriggerParams.
   */
  readonly messageSize?: number;
  /** Parameters whose gradients close the bucket of their dtype; nothing else closes one. */
  readonly allreduceTriggerParams?: readonly Tensor[];
  /**
   * Reduces everything at the end of backward, in one bucket per dtype, without overlap. Default
   * false.
   */
  readonly delayAllreduce?: boolean;
  /**
   * Makes gradients views of the reduced buckets, which `allreduceBuffers` shows. Default false.
   */
  readonly retainAllreduceBuffers?: boolean;
  /**
   * The number of process groups that buckets take in turn. Default 1, which is processGroup
   * itself.
   */
  readonly numAllreduceStreams?: number;
  /** The process groups to use, numAllreduceStreams of them. Default: split off processGroup. */
  readonly allreduceCommunicators?: readonly ProcessGroup[];
  /** Records the wrapper's own work as ranges of the device's trace. Default false. */
  readonly prof?: boolean;
}

/** How gradients are put into buckets and added up over ranks. */
export interface DdpOptions extends ApexOptions {
  /** The ranks that train together. */
  readonly processGroup: ProcessGroup;
  /**
   * The bytes from which the first bucket of a dtype is full; it is small so that communication
   * starts early. Default 1 MiB.
   */
  readonly firstBucketBytes?: number;
  /**
   * The bytes from which the other buckets are full. Default 40 MB, which is apex's ten million
   * f32.
   */
  readonly bucketCapBytes?: number;
  /** Divides, sends and adds 16-bit gradients in f32. Default false, with gradientGroups true. */
  readonly allreduceAlwaysFp32?: boolean;
  /**
   * A step is the rows of so many groups, each a forward and a backward of its own: `groupCalls`
   * tells which of them this rank runs. Their gradients are added in f32 in the order of one fixed
   * tree over the groups, so the bits do not depend on the number of ranks. Default: each backward
   * is reduced, and ranks are added in rank order.
   */
  readonly gradientGroups?: number | undefined;
  /**
   * By rank, how many of the groups it runs, where ranks are not equally fast: `[4, 3, 1]` of 8.
   * The bits do not depend on it. Default: as even as can be.
   */
  readonly groupCounts?: readonly number[] | undefined;
  /** Divides the sums by the world size, with gradientGroups by their number. Default true. */
  readonly gradientAverage?: boolean;
  /**
   * Gradients are divided by this factor before the sum and, where averaged, by worldSize / factor
   * after it. Default 1.
   */
  readonly gradientPredivideFactor?: number;
  /**
   * Parameters that a backward does not reach count as zeros, and those that no rank reached keep
   * the gradient that they had. Default: true with delayAllreduce, else false, which makes them an
   * error.
   */
  readonly findUnusedParameters?: boolean;
  /**
   * Every backward reaches the same parameters: ranks agree on the first backward's set and leave
   * the other parameters out from then on; a backward that differs is an error. Default false.
   */
  readonly staticGraph?: boolean;
  /** Sends rank 0's buffers to all ranks before each forward in training mode. Default false. */
  readonly broadcastBuffers?: boolean;
  /**
   * Whether rank 0's parameters and buffers go to all ranks before the first forward. false: they
   * are equal already, as those of a job are that goes on with other ranks. Default true.
   */
  readonly initSync?: boolean;
  /** The hook that adds a bucket up over ranks. Default: an all-reduce of its exact values. */
  readonly communicationHook?: CommunicationHook;
  /**
   * A name before the buckets' numbers in traces, where a process wraps several modules; equal on
   * all ranks. Default none.
   */
  readonly name?: string;
}

export interface ResolvedDdpOptions {
  readonly sizes: BucketSizes;
  readonly triggers: ReadonlySet<Tensor>;
  readonly isDelayed: boolean;
  readonly isRetaining: boolean;
  readonly isAlwaysFp32: boolean;
  readonly gradientGroups: number | undefined;
  readonly groupCounts: readonly number[] | undefined;
  readonly numStreams: number;
  readonly communicators: readonly ProcessGroup[] | undefined;
  readonly predivide: number;
  readonly isAveraging: boolean;
  /** The divisor of the sums. */
  readonly postdivide: number;
  readonly isProfiling: boolean;
  readonly isFindingUnused: boolean;
  readonly isStaticGraph: boolean;
  readonly isBroadcastingBuffers: boolean;
  readonly isSyncedAtFirst: boolean;
  readonly communicationHook: CommunicationHook | undefined;
  readonly name: string;
}

// PyTorch's default: small enough to leave before backward is through with the last two layers.
const FIRST_BUCKET_BYTES = 2 ** 20;
const BUCKET_CAP_BYTES = 4 * 1e7;

/** What a number has to be is said below, with what follows from it. */
const NUMBER: OptionRule = { expected: 'a number', holds: (value) => typeof value === 'number' };

const RULES: OptionRules<DdpOptions> = {
  processGroup: GROUP,
  ...allOptional({
    messageSize: NUMBER,
    firstBucketBytes: NUMBER,
    bucketCapBytes: NUMBER,
    allreduceTriggerParams: {
      expected: 'an array of parameters',
      holds: (value) => Array.isArray(value) && value.every(isTensor),
    },
    delayAllreduce: FLAG,
    retainAllreduceBuffers: FLAG,
    allreduceAlwaysFp32: FLAG,
    numAllreduceStreams: NUMBER,
    allreduceCommunicators: {
      expected: 'an array of process groups',
      holds: (value) => Array.isArray(value) && value.every(GROUP.holds),
    },
    gradientGroups: NUMBER,
    groupCounts: {
      expected: 'an array of numbers',
      holds: (value) => Array.isArray(value) && value.every(NUMBER.holds),
    },
    gradientAverage: FLAG,
    gradientPredivideFactor: NUMBER,
    prof: FLAG,
    findUnusedParameters: FLAG,
    staticGraph: FLAG,
    broadcastBuffers: FLAG,
    initSync: FLAG,
    communicationHook: having('a communication hook, such as compressionHook()', 'reduce'),
    name: TEXT,
  }),
};

/**
 * Fills in defaults.
 * @throws {DdpConfigError} for options that contradict each other, were removed, or are unknown
 */
export function resolveOptions(options: DdpOptions): ResolvedDdpOptions {
  checkOptions('ddp', options, RULES);
  const isDelayed = options.delayAllreduce ?? false;
  const triggers = options.allreduceTriggerParams;
  if (triggers !== undefined && isDelayed) {
    throw new DdpConfigError(
      'ddp: expected allreduceTriggerParams without delayAllreduce, got both. Triggers start reductions during backward, delaying forbids that; drop one.',
    );
  }
  const { worldSize } = options.processGroup;
  const predivide = options.gradientPredivideFactor ?? 1;
  if (!(predivide > 0 && Number.isFinite(predivide))) {
    throw new DdpConfigError(`ddp: expected gradientPredivideFactor > 0, got ${predivide}.`);
  }
  const isAveraging = options.gradientAverage ?? true;
  const { gradientGroups, groupCounts } = options;
  requireGroups(options, isDelayed);
  return {
    sizes: isDelayed ? { elements: Number.POSITIVE_INFINITY } : resolveSizes(options),
    triggers: new Set(triggers),
    isDelayed,
    isRetaining: options.retainAllreduceBuffers ?? false,
    isAlwaysFp32: gradientGroups !== undefined || (options.allreduceAlwaysFp32 ?? false),
    gradientGroups,
    groupCounts,
    ...resolveStreams(options, isDelayed),
    predivide,
    isAveraging,
    postdivide: isAveraging ? (gradientGroups ?? worldSize) / predivide : 1,
    isProfiling: options.prof ?? false,
    isFindingUnused: options.findUnusedParameters ?? isDelayed,
    isStaticGraph: options.staticGraph ?? false,
    isBroadcastingBuffers: options.broadcastBuffers ?? false,
    isSyncedAtFirst: options.initSync ?? true,
    communicationHook: options.communicationHook,
    name: options.name ?? '',
  };
}

/**
 * The options that must be equal on all ranks, one per line. Only `prof` may differ.
 * @param pathOf the path in the module of a trigger parameter
 */
export function describeOptions(
  options: ResolvedDdpOptions,
  pathOf: (parameter: Tensor) => string,
): string[] {
  const { sizes, communicators, communicationHook: hook } = options;
  const isBySize = 'elements' in sizes;
  const described = {
    gradientPredivideFactor: options.predivide,
    gradientAverage: options.isAveraging,
    delayAllreduce: options.isDelayed,
    messageSize: isBySize ? sizes.elements : 'unset',
    firstBucketBytes: isBySize ? 'unset' : sizes.firstBytes,
    bucketCapBytes: isBySize ? 'unset' : sizes.capBytes,
    allreduceTriggerParams: [...options.triggers].map(pathOf).sort().join(', ') || 'none',
    retainAllreduceBuffers: options.isRetaining,
    allreduceAlwaysFp32: options.isAlwaysFp32,
    gradientGroups: options.gradientGroups ?? 'none',
    groupCounts: options.groupCounts?.join(', ') ?? 'even',
    numAllreduceStreams: options.numStreams,
    allreduceCommunicators: communicators?.map(({ id }) => id).join(', ') ?? 'split off',
    findUnusedParameters: options.isFindingUnused,
    staticGraph: options.isStaticGraph,
    broadcastBuffers: options.isBroadcastingBuffers,
    initSync: options.isSyncedAtFirst,
    communicationHook: hook === undefined ? 'none' : `${hook.name} (${hook.settings ?? ''})`,
    name: options.name,
  } satisfies Partial<Record<keyof DdpOptions, unknown>>;
  return Object.entries(described).map(([option, value]) => `${option}: ${value}`);
}

/** @throws {DdpConfigError} for options that do not go with gradientGroups, or no number of them */
function requireGroups(options: DdpOptions, isDelayed: boolean): void {
  const { gradientGroups: groups, groupCounts: counts, findUnusedParameters = isDelayed } = options;
  if (counts !== undefined) {
    requireCounts(counts, groups ?? 0, options.processGroup.worldSize);
  }
  if (groups === undefined) {
    return;
  }
  if (!Number.isSafeInteger(groups) || groups < 1) {
    throw new DdpConfigError(
      `ddp: expected gradientGroups as a whole number of at least 1, got ${groups}.`,
    );
  }
  const other =
    options.communicationHook !== undefined
      ? 'communicationHook: sums of groups are exact'
      : findUnusedParameters
        ? 'findUnusedParameters: every group has a gradient of all parameters'
        : options.staticGraph
          ? 'staticGraph: every group has a gradient of all parameters, so freeze those that none uses'
          : options.allreduceAlwaysFp32 === false
            ? 'allreduceAlwaysFp32 false: sums of groups are f32'
            : undefined;
  if (other !== undefined) {
    throw new DdpConfigError(`ddp: expected no gradientGroups, got ${groups} with ${other}.`);
  }
}

/** @throws {DdpConfigError} for counts that don't deal all groups to the ranks */
function requireCounts(counts: readonly number[], groups: number, worldSize: number): void {
  const dealt = counts.reduce((sum, count) => sum + count, 0);
  const areCounts = counts.every((count) => Number.isSafeInteger(count) && count >= 0);
  if (!areCounts || counts.length !== worldSize || dealt !== groups) {
    throw new DdpConfigError(
      `ddp: expected groupCounts of ${worldSize} ranks that add up to gradientGroups, ${groups}, got [${counts.join(', ')}].`,
    );
  }
}

function resolveSizes(options: DdpOptions): BucketSizes {
  const { messageSize, firstBucketBytes, bucketCapBytes } = options;
  for (const [name, size] of Object.entries({ messageSize, firstBucketBytes, bucketCapBytes })) {
    if (size !== undefined && !(size > 0)) {
      throw new DdpConfigError(`ddp: expected ${name} > 0, got ${size}.`);
    }
  }
  if (messageSize === undefined) {
    const capBytes = bucketCapBytes ?? BUCKET_CAP_BYTES;
    return { firstBytes: firstBucketBytes ?? Math.min(FIRST_BUCKET_BYTES, capBytes), capBytes };
  }
  if (firstBucketBytes !== undefined || bucketCapBytes !== undefined) {
    throw new DdpConfigError(
      'ddp: expected either messageSize, in elements, or firstBucketBytes and bucketCapBytes, got both.',
    );
  }
  return { elements: messageSize };
}

function resolveStreams(options: DdpOptions, isDelayed: boolean) {
  const numStreams = options.numAllreduceStreams ?? 1;
  const communicators = options.allreduceCommunicators;
  if (!Number.isInteger(numStreams) || numStreams < 1) {
    throw new DdpConfigError(
      `ddp: expected numAllreduceStreams as a whole number of at least 1, got ${numStreams}.`,
    );
  }
  if (numStreams > 1 && isDelayed) {
    throw new DdpConfigError(
      `ddp: expected numAllreduceStreams 1 with delayAllreduce, got ${numStreams}. Nothing is in flight during backward; drop one.`,
    );
  }
  if (communicators !== undefined) {
    if (numStreams === 1 || communicators.length !== numStreams) {
      throw new DdpConfigError(
        `ddp: expected as many allreduceCommunicators as numAllreduceStreams, and more than one, got ${communicators.length} for ${numStreams} streams. One group alone is the option processGroup.`,
      );
    }
    const { worldSize } = options.processGroup;
    const other = communicators.find((group) => group.worldSize !== worldSize);
    if (other !== undefined) {
      throw new DdpConfigError(
        `ddp: expected allreduceCommunicators of ${worldSize} ranks as processGroup has, got one of ${other.worldSize}.`,
      );
    }
    if (new Set(communicators).size < communicators.length) {
      throw new DdpConfigError(
        'ddp: expected allreduceCommunicators to be different groups, got one twice. Split each off the world.',
      );
    }
  }
  return { numStreams, communicators };
}
