// What users of fairscale alone ask for, under its names: optimizer state and shards as dicts,
// offline consolidation, parameters that are whole for a while, and configs that modules carry.

export { apply, type ModuleVisitor } from './fairscale/apply.js';
export { type AutoWrapBnOptions, autoWrapBn } from './fairscale/auto-wrap-bn.js';
export { configAutoWrapPolicy } from './fairscale/config-auto-wrap-policy.js';
export { type ConsolidateOptions, consolidateShardWeights } from './fairscale/consolidate.js';
export { loadLocalStateDict, localStateDict } from './fairscale/local-state-dict.js';
export {
  type FullOptimStateDict,
  gatherFullOptimStateDict,
  getShardFromOptimStateDict,
  loadFullOptimStateDict,
  loadOptimStateShard,
  localOptimStateDict,
  type OptimStateShard,
} from './fairscale/optim-state-dict.js';
export {
  type FlatMetadata,
  localMetadataDict,
  type ShardMetadata,
} from './fairscale/shard-metadata.js';
export { type SummonOptions, summonFullParams } from './fairscale/summon-full-params.js';
export { defaultPredivide } from './resolve-options.js';
export { setWrapperConfig, wrapperConfigOf } from './wrap/enable-wrap.js';
