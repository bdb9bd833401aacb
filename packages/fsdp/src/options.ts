// The options of FullyShardedDataParallel, and what follows from them.

import type { ProcessGroup } from '@shardweave/collectives';
import type { DType, Tensor } from '@shardweave/tensor-core';
import { checkFsdpOptions } from './check-options.js';
import { FsdpConfigError } from './errors.js';
import { type Residence, type ResidenceOptions, resolveResidence } from './unit/residence.js';
import type { DivideFactors } from './unit/unit-gradient.js';
import type { LinkGroups } from './unit/unit-links.js';

/** Parameters that become one flat parameter. */
export interface ParameterGroup {
  readonly name: string;
  readonly params: readonly Tensor[];
}

export interface FsdpOptions extends ResidenceOptions {
  /**
   * The ranks that share the parameters. An instance inside may have another group: experts have one
   * of their own rank alone.
   */
  readonly processGroup: ProcessGroup;
  /**
   * Where reductions run. 'reduceScatter' (default): in a second sequence, split off processGroup once,
   * so that gathers and reductions don't wait for one another. 'default': in processGroup itself. Or
   * a group of the same ranks.
   */
  readonly processGroupReduceScatter?: 'default' | 'reduceScatter' | ProcessGroup;
  /**
   * Hybrid sharding: ranks that hold the same shard, one of each replica of processGroup. Reduced
   * gradients are added up over it too.
   */
  readonly replicateGroup?: ProcessGroup;
  /**
   * true (default): one flat parameter for all that are trained, one for the frozen. false: each
   * parameter is sharded on its own. Or groups, each made one flat parameter of its name; parameters
   * in none are sharded on their own.
   */
  readonly flattenParameters?: boolean | readonly ParameterGroup[];
  /** Initial values, buffers too, come from rank 0 at the first collective call. Default true. */
  readonly syncModuleStates?: boolean;
  /** Free full parameters after forward and gather them again in backward. Default true. */
  readonly reshardAfterForward?: boolean;
  /** The root keeps its parameters until backward, which starts with them. Default true. */
  readonly disableReshardOnRoot?: boolean;
  /** Shards of f32 parameters are masters: computation and gathers are in computeDType. Default false. */
  readonly mixedPrecision?: boolean;
  /**
   * Default f16 where mixedPrecision, else f32. Without mixedPrecision what is trained must have it
   * already (pure 16-bit: the shards too). 16-bit parameters are computed with in their own dtype.
   */
  readonly computeDType?: 'f32' | 'f16' | 'bf16';
  /** Float buffers are cast to it when the root's forward begins. Default computeDType. */
  readonly bufferDType?: 'f32' | 'f16' | 'bf16';
  /** Cast 16-bit inputs of forward to f32, with autograd; for f32 islands. Not with mixedPrecision. */
  readonly forceInputToFp32?: boolean;
  /** Reduce gradients in f32 though computation is in 16 bits. Needs mixedPrecision. Default false. */
  readonly fp32ReduceScatter?: boolean;
  /**
   * Gradients are divided by this before the reduction and by the number of ranks / this after it. Default:
   * the power of two nearest above the square root of worldSize that divides it (fairscale's rule).
   */
  readonly gradientPredivideFactor?: number;
  /**
   * MiB of gradients that share a reduction: small ones wait for it, larger ones don't. At most 0: each
   * flat parameter is reduced as soon as its gradient is final, which overlaps best where the whole
   * model is not much larger than this. The root's counts, but at most 0 holds for an instance of
   * its own. Default 25.
   */
  readonly bucketCapMb?: number;
  /** Most bytes of full parameters gathered ahead of their use. Default 64 MiB. */
  readonly gatherCapBytes?: number;
  /** Where stateDict leaves values: host bytes, or tensors on the device. Default 'host'. */
  readonly stateDictDevice?: 'host' | 'device';
  /** stateDict gives the first rank all entries, the others none. Default false. */
  readonly stateDictOnRank0Only?: boolean;
  /**
   * Ranks hold different parameters here (experts), so optimizer state stays where it is. Default:
   * true for an inner instance of fewer ranks, replicas included, than the tree has.
   */
  readonly noBroadcastOptimState?: boolean;
  /** Let resetParameters make new initial values. Default false: it is easily called by mistake. */
  readonly allowResetParameters?: boolean;
  /** toString tells the options and flat parameters too. Default false. */
  readonly verbose?: boolean;
  /**
   * Parameters that this rank's backward does not reach, but another's, count as having zeros: ranks
   * agree at the start of each backward, by one small collective. Default false: ranks that differ get
   * an error that names the parameters. The root's counts.
   */
  readonly findUnusedParameters?: boolean;
  /** For errors and traces. Default the module's path is not known, so 'fsdp'. */
  readonly name?: string;
}

// Ahead of use only the wire and host memory are busy; several units of a small model fit, one or
// two of a large one.
const DEFAULT_GATHER_CAP_BYTES = 64 * 2 ** 20;

// fairscale's.
const DEFAULT_BUCKET_CAP_MB = 25;

export interface ResolvedFsdpOptions {
  readonly groups: LinkGroups;
  readonly flattenParameters: boolean | readonly ParameterGroup[];
  readonly syncModuleStates: boolean;
  readonly reshardAfterForward: boolean;
  readonly disableReshardOnRoot: boolean;
  readonly isMixed: boolean;
  /** dtype of the shards, and so what parameters have before sharding. */
  readonly masterDType: DType;
  readonly bufferDType: DType;
  readonly forceInputToFp32: boolean;
  readonly computeDType: DType;
  readonly reduceDType: DType;
  /** May change between steps. */
  readonly divide: DivideFactors;
  readonly residence: Residence | undefined;
  readonly isBucketed: boolean;
  readonly bucketCapBytes: number;
  readonly gatherCapBytes: number;
  readonly findUnusedParameters: boolean;
  readonly stateDict: {
    readonly stateDictDevice: 'host' | 'device';
    readonly stateDictOnRank0Only: boolean;
  };
  readonly noBroadcastOptimState: boolean | undefined;
  readonly allowResetParameters: boolean;
  readonly isVerbose: boolean;
}

/**
 * Fills in defaults.
 * @throws {FsdpConfigError} for options that contradict each other, are unknown, or of a wrong type
 */
export function resolveOptions(options: FsdpOptions): ResolvedFsdpOptions {
  checkFsdpOptions(options);
  const isMixed = options.mixedPrecision ?? false;
  if (options.fp32ReduceScatter === true && !isMixed) {
    throw new FsdpConfigError(
      'fsdp: expected mixedPrecision with fp32ReduceScatter, got full precision. Gradients are f32 already; drop the option.',
    );
  }
  const computeDType = options.computeDType ?? (isMixed ? 'f16' : 'f32');
  if (options.forceInputToFp32 === true && computeDType !== 'f32') {
    throw new FsdpConfigError(
      `fsdp: expected computation in f32 with forceInputToFp32, got ${computeDType}. Drop one of them.`,
    );
  }
  const { worldSize } = options.processGroup;
  const reduce = options.processGroupReduceScatter ?? 'reduceScatter';
  const reduceSize = typeof reduce === 'string' ? worldSize : reduce.worldSize;
  if (reduceSize !== worldSize) {
    throw new FsdpConfigError(
      `fsdp: expected processGroupReduceScatter of ${worldSize} ranks as processGroup has, got ${reduceSize}.`,
    );
  }
  const numParts = worldSize * (options.replicateGroup?.worldSize ?? 1);
  const predivide = options.gradientPredivideFactor ?? defaultPredivide(numParts);
  const bucketCapMb = options.bucketCapMb ?? DEFAULT_BUCKET_CAP_MB;
  return {
    groups: {
      processGroup: options.processGroup,
      processGroupReduceScatter: reduce,
      replicateGroup: options.replicateGroup,
    },
    flattenParameters: options.flattenParameters ?? true,
    syncModuleStates: options.syncModuleStates ?? true,
    reshardAfterForward: options.reshardAfterForward ?? true,
    disableReshardOnRoot: options.disableReshardOnRoot ?? true,
    isMixed,
    masterDType: isMixed ? 'f32' : computeDType,
    bufferDType: options.bufferDType ?? computeDType,
    forceInputToFp32: options.forceInputToFp32 ?? false,
    computeDType,
    reduceDType: options.fp32ReduceScatter === true ? 'f32' : computeDType,
    divide: { predivide, postdivide: numParts / predivide },
    residence: resolveResidence(options),
    isBucketed: bucketCapMb > 0,
    bucketCapBytes: Math.max(0, bucketCapMb) * 2 ** 20,
    gatherCapBytes: options.gatherCapBytes ?? DEFAULT_GATHER_CAP_BYTES,
    findUnusedParameters: options.findUnusedParameters ?? false,
    stateDict: {
      stateDictDevice: options.stateDictDevice ?? 'host',
      stateDictOnRank0Only: options.stateDictOnRank0Only ?? false,
    },
    noBroadcastOptimState: options.noBroadcastOptimState,
    allowResetParameters: options.allowResetParameters ?? false,
    isVerbose: options.verbose ?? false,
  };
}

/** 1, doubled while it divides worldSize and worldSize / factor is larger than it. */
export function defaultPredivide(worldSize: number): number {
  let factor = 1;
  while (worldSize % factor === 0 && worldSize / factor > factor) {
    factor *= 2;
  }
  return factor;
}
