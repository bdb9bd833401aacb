// Wraps batch normalizations as f32 islands: their statistics need the precision, and they are too
// small to be worth freeing.

import type { ProcessGroup } from '@shardweave/collectives';
import { isBatchNorm, type Module } from '@shardweave/nn';
import { requireModule } from '@shardweave/nn/flat';
import { allOptional, FLAG, OBJECT, type OptionRules } from '@shardweave/tensor-core/options';
import { checkOptions, GROUP } from '../check-options.js';
import { FsdpConfigError } from '../errors.js';
import { autoWrap } from '../wrap/auto-wrap.js';
import {
  enableWrap,
  setWrapperConfig,
  type WrapperConfig,
  wrapperConfigOf,
} from '../wrap/enable-wrap.js';
import { configAutoWrapPolicy } from './config-auto-wrap-policy.js';

/** Options of autoWrapBn. */
export interface AutoWrapBnOptions {
  readonly processGroup: ProcessGroup;
  /**
   * Wrap them in a group of this rank alone: each rank then has and trains its own, and nothing is
   * averaged. Default false.
   */
  readonly singleRankPg?: boolean;
  /**
   * Options that override those that they are wrapped with by default: f32, not flattened, not
   * resharded, not bucketed.
   */
  readonly fsdpConfig?: WrapperConfig;
  /** Wrap them at once. false: only tag them for a later autoWrap. Default true. */
  readonly wrapIt?: boolean;
  /**
   * Refuse batch normalizations that have a wrapperConfig already; false: replace it. Default true.
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

const RULES: OptionRules<AutoWrapBnOptions> = {
  processGroup: GROUP,
  ...allOptional({ singleRankPg: FLAG, fsdpConfig: OBJECT, wrapIt: FLAG, assertOnCollision: FLAG }),
};

/**
 * Gives every batch normalization below `module` a wrapperConfig, and wraps it accordingly.
 * Collective with singleRankPg.
 * @returns the module, or its wrapper where it is a batch normalization itself
 * @throws {FsdpConfigError} for a second config, or where autoWrap refuses
 */
export async function autoWrapBn(module: Module, options: AutoWrapBnOptions): Promise<Module> {
  requireModule('autoWrapBn', module, FsdpConfigError);
  checkOptions('autoWrapBn', options, RULES);
  const { fsdpConfig, wrapIt = true, assertOnCollision = true } = options;
  const norms = module.namedModules().filter(([, inner]) => isBatchNorm(inner));
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
