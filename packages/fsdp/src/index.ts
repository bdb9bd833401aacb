// FullyShardedDataParallel: parameters, gradients and optimizer state sharded over ranks.

export {
  FsdpConfigError,
  FsdpError,
  FsdpRanksDifferError,
  FsdpStateError,
} from './errors.js';
export { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';
export { innerModule } from './inner-module.js';
export { isFsdp } from './is-fsdp.js';
export type { FsdpOptions, ParameterGroup } from './options.js';
export { commitOffload } from './step/commit-offload.js';
export {
  type GradientDivideFactors,
  setGradientDivideFactors,
} from './step/gradient-divide-factors.js';
export { syncReplicas } from './step/sync-replicas.js';
export type { TrainingState } from './tree/training-state.js';
export type { OffloadConfig, ResidenceOptions } from './unit/placement.js';
export { pieceOf, type ShardLayout, shardLayout } from './unit/shard-layout.js';
export type { DivideFactors } from './unit/unit-gradient.js';
export {
  type AutoWrapped,
  autoWrap,
  type WrapCandidate,
  type WrapPolicy,
} from './wrap/auto-wrap.js';
export {
  type DefaultAutoWrapPolicyOptions,
  defaultAutoWrapPolicy,
  type ModuleClass,
} from './wrap/default-auto-wrap-policy.js';
export {
  enableWrap,
  type MakeWrapper,
  noWrap,
  type Wrap,
  type WrapperConfig,
} from './wrap/enable-wrap.js';
export { type FullyShardOptions, fullyShard } from './wrap/fully-shard.js';
