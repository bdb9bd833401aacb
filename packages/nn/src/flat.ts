// For packages that wrap modules: flat parameters, where they rest, and when they come and go.
// Programs that only train need nothing of it.

export { FlatGradient, type FlatGradientOptions } from './flat/flat-gradient.js';
export { type FlatLeaf, FlatParameter, type FlatParameterOptions } from './flat/flat-parameter.js';
export type { FlatLoad, FullCopy, FullCopyOptions } from './flat/full-copy.js';
export {
  dealtGroups,
  type GroupCall,
  GroupSums,
  type GroupSumsOptions,
  type HeldOfKey,
} from './flat/group-sums.js';
export {
  alignElements,
  FLAT_ALIGN_ELEMENTS,
  type FlatLayout,
  type FlatPlace,
  flatLayout,
  type ParameterPiece,
  pieceIn,
} from './flat/layout/flat-layout.js';
export { flatsOf } from './flat/layout/flat-plan.js';
export {
  type FlatState,
  type FlatStateBytes,
  type Progress,
  runAt,
  type StateRun,
} from './flat/layout/flat-state.js';
export { partsOf } from './flat/leaf-values.js';
export {
  type DeliveredLeaf,
  type PackedGradient,
  packedGradientOf,
} from './flat/packed-gradient.js';
export { markCopies, masterOf } from './flat/placement.js';
export {
  type StagePhase,
  StageScheduler,
  type UnitLoader,
  type UseKind,
} from './flat/stage-scheduler.js';
export type { ByteStore, PinnedBytes } from './flat/stores/byte-store.js';
export {
  type FlatHome,
  type FlatPart,
  type FlatTurn,
  type FlatVisit,
  flatHomeOf,
  occupyHomes,
  setFlatHome,
  type VisitStep,
  visitFlats,
} from './flat/stores/flat-home.js';
export { HostBuffers } from './flat/stores/host-buffers.js';
export { RestingState, type StateSignature } from './flat/stores/resting-state.js';
export type { RestingStates } from './flat/stores/resting-states.js';
export { StoreUse, storeUseOf, type UnfinishedStep } from './flat/stores/store-use.js';
export { StoredFlat, type StoredFlatOptions } from './flat/stores/stored-flat.js';
export type { StoredGradient } from './flat/stores/stored-gradient.js';
export {
  type DescribedFlat,
  StoredModel,
  type StoredModelOptions,
} from './flat/stores/stored-model.js';
export type { StoredParameter } from './flat/stores/stored-parameter.js';
export { LEAST_PART_BYTES } from './flat/stores/stored-visit.js';
export {
  type CheckStateOptions,
  checkState,
  differingState,
  type ExpectedEntry,
} from './held/check-state.js';
export {
  ALONE,
  type AtRest,
  type ElementsOfRank,
  type GivenParameters,
  HELD,
  type Held,
  type HeldBy,
  type HeldCall,
  type HeldPart,
  type HeldRanks,
  type Holder,
  type ReadParameter,
} from './held/held.js';
export type { AnyOptimizer, FlatProgress } from './held/held-flats.js';
export { plainAtRest, writeTensor } from './held/plain-parts.js';
export { bytesOf, convertBytes, PartRoom, partsOfEntry } from './held/state-entry.js';
export { castFloats } from './map-tensors.js';
export { materialize } from './materialize.js';
export { requireModule } from './module.js';
export { checkStates, joinMembers } from './optim/optimizer-state.js';
export {
  deferredParameter,
  dropRecipe,
  hostRecipe,
  type ParameterRecipe,
  recipeOf,
} from './parameters/deferred-parameter.js';
export {
  type DeviceEncoding,
  type EncodedParameterOptions,
  encodedParameter,
  encodingOf,
  type HostEncoding,
  type ParameterEncoding,
  restShape,
  restSize,
} from './parameters/encoded-parameter.js';
export {
  type ShardedTable,
  shardedTableOf,
  shardTable,
  tokenTableOf,
} from './parameters/sharded-table.js';
