// Batch normalizations as f32 islands: their statistics need the digits, and they are too small to
// be worth freeing.

import type { ProcessGroup } from '@shardweave/collectives';
import { isBatchNorm, type Module } from '@shardweave/nn';
import { FsdpConfigError } from '../errors.js';
import { autoWrap } from './auto-wrap.js';
import { configAutoWrapPolicy } from './config-auto-wrap-policy.js';
import {
  enableWrap,
  setWrapperConfig,
  type WrapperConfig,
  wrapperConfigOf,
} from './enable-wrap.js';

/** How the batch normalizations of a model are wrapped. */
export interface AutoWrapBnOptions {
  readonly processGroup: ProcessGroup;
  /**
   * Wrap them in a group of this rank alone: each rank then has and trains its own, without any
   * averaging. Default false.
   */
  readonly singleRankPg?: boolean;
  /** Wins over what they are wrapped with: f32, un-flattened, not resharded, not bucketed. */
  readonly fsdpConfig?: WrapperConfig;
  /** Wrap them now; else they are only tagged, for a later autoWrap. Default true. */
  readonly wrapIt?: boolean;
  /**
   * Refuse batch normalizations that have a wrapperConfig already; else replace it. Default true.
   */
  readonly assertOnCollision?: boolean;
}

const BN_CONFIG = {
  mixedPrecision: false,
  computeDType: 'f32',
  flattenParameters: false,
  reshardAfterForward: false,
  bucketCapMb: 0,
} as const satisfies WrapperConfig;

/**
 * Gives every batch normalization below `module` a wrapperConfig, and wraps it by that. Returns the
 * module, or its wrapper where it is one itself. Collective where singleRankPg.
 * @throws {FsdpConfigError} for a second config, or where autoWrap refuses
 */
export async function autoWrapBn(module: Module, options: AutoWrapBnOptions): Promise<Module> {
  const { fsdpConfig, wrapIt = true, assertOnCollision = true } = options;
  const norms = module.namedModules().filter(([, each]) => isBatchNorm(each));
  const collision = norms.find(([, norm]) => wrapperConfigOf(norm) !== undefined);
  if (assertOnCollision && collision !== undefined) {
    throw new FsdpConfigError(
      `autoWrapBn: expected batch norms without a wrapperConfig, got one at '${collision[0]}'. Set assertOnCollision: false to replace it.`,
    );
  }
  const group = options.processGroup;
  const processGroup = options.singleRankPg === true ? await group.split(group.rank) : group;
  for (const [, norm] of norms) {
    setWrapperConfig(norm, { processGroup, ...BN_CONFIG, ...fsdpConfig });
  }
  if (!wrapIt) {
    return module;
  }
  return autoWrap(module, configAutoWrapPolicy, enableWrap({ processGroup })).module;
}
