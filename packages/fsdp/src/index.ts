// FullyShardedDataParallel: parameters, gradients and optimizer state sharded over ranks.

export { apply, type ModuleVisitor } from './apply.js';
export { commitOffload } from './commit-offload.js';
export { type ConsolidateOptions, consolidateShardWeights } from './consolidate.js';
export {
  FsdpConfigError,
  FsdpError,
  FsdpRankFailedError,
  FsdpRanksDifferError,
  FsdpStateDictError,
  FsdpStateError,
} from './errors.js';
export {
  type ElementRange,
  FLAT_ALIGN_ELEMENTS,
  type FlatLayout,
  flatLayout,
  pieceOf,
} from './flat-layout.js';
export { FullyShardedDataParallel, type TrainingState } from './fully-sharded-data-parallel.js';
export { clipGradNorm, type GradNormOptions, gradNorm } from './grad-norm.js';
export { type GradientDivideFactors, setGradientDivideFactors } from './gradient-divide-factors.js';
export { isFsdp } from './is-fsdp.js';
export { loadLocalStateDict, localStateDict } from './local-state-dict.js';
export {
  type FullOptimStateDict,
  gatherFullOptimStateDict,
  getShardFromOptimStateDict,
  loadFullOptimStateDict,
  loadOptimStateShard,
  localOptimStateDict,
  type OptimStateShard,
} from './optim-state-dict.js';
export { defaultPredivide, type FsdpOptions } from './options.js';
export type { OffloadConfig, ResidenceOptions } from './residence.js';
export { type FlatMetadata, localMetadataDict, type ShardMetadata } from './shard-metadata.js';
export { ShardedGradScaler, type ShardedGradScalerOptions } from './sharded-grad-scaler.js';
export { type LoadShardsOptions, loadShards } from './shards/load-shards.js';
export { type SaveShardsOptions, saveShards } from './shards/save-shards.js';
export type {
  SavedOptimizer,
  SavedPiece,
  SavedTensor,
  ShardIndex,
  ShardReader,
  ShardSink,
} from './shards/shard-index.js';
export { loadStateDict, type StateDictOptions, stateDict } from './state-dict.js';
export type { StateDict, StateEntry } from './state-entry.js';
export { type SummonOptions, summonFullParams } from './summon-full-params.js';
export {
  type AutoWrapped,
  autoWrap,
  type WrapCandidate,
  type WrapPolicy,
} from './wrap/auto-wrap.js';
export { type AutoWrapBnOptions, autoWrapBn } from './wrap/auto-wrap-bn.js';
export { configAutoWrapPolicy } from './wrap/config-auto-wrap-policy.js';
export {
  type DefaultAutoWrapPolicyOptions,
  defaultAutoWrapPolicy,
  type ModuleClass,
} from './wrap/default-auto-wrap-policy.js';
export {
  enableWrap,
  type MakeWrapper,
  noWrap,
  setWrapperConfig,
  type Wrap,
  type WrapperConfig,
  wrapperConfigOf,
} from './wrap/enable-wrap.js';
export { innerModule } from './wrap/inner-module.js';
