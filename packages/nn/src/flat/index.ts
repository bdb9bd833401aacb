// For packages that wrap modules: flat parameters, where they rest, and when they come and go.
// Programs that only train need nothing of it.

export { isConvertible } from '../host-tensor.js';
export {
  type FlatState,
  type FlatStateBytes,
  type Progress,
  runAt,
  type StateRun,
} from '../optim/flat-state.js';
export { gradNodes, normParameters } from '../optim/grad-nodes.js';
export {
  type BlockRange,
  blockRange,
  joinNormValues,
  type NormNode,
  type NormValue,
  normCover,
  normOfRoots,
} from '../optim/norm-tree.js';
export { checkStates, joinMembers } from '../optim/optimizer-state.js';
export type { AnyOptimizer, FlatProgress, SavedNames } from '../saves/held-flats.js';
export {
  HeldModule,
  type HeldModuleOptions,
  type LoadOptions,
  type PiecesOptions,
} from '../saves/held-module.js';
export {
  deferredParameter,
  hostRecipe,
  materialize,
  type ParameterRecipe,
  recipeOf,
} from './deferred-parameter.js';
export {
  type DeviceEncoding,
  type EncodedParameterOptions,
  encodedParameter,
  encodingOf,
  type HostEncoding,
  type ParameterEncoding,
  restShape,
  restSize,
} from './encoded-parameter.js';
export { FlatGradient, type FlatGradientOptions } from './flat-gradient.js';
export {
  alignElements,
  FLAT_ALIGN_ELEMENTS,
  type FlatLayout,
  type FlatPlace,
  flatLayout,
  type ParameterPiece,
  pieceIn,
} from './flat-layout.js';
export {
  type FlatLeaf,
  type FlatLoad,
  FlatParameter,
  type FlatParameterOptions,
} from './flat-parameter.js';
export type { ByteStore, PinnedBytes } from './homes/byte-store.js';
export {
  type FlatHome,
  type FlatPart,
  type FlatTurn,
  type FlatVisit,
  flatHomeOf,
  type HomeSteps,
  occupyHomes,
  setFlatHome,
  type UnfinishedStep,
  type VisitStep,
  visitFlats,
} from './homes/flat-home.js';
export { HostBuffers } from './homes/host-buffers.js';
export { RestingState, type StateSignature } from './homes/resting-state.js';
export { StoreUse, storeUseOf } from './homes/store-use.js';
export { StoredFlat, type StoredFlatOptions } from './homes/stored-flat.js';
export { StoredModel, type StoredModelOptions } from './homes/stored-model.js';
export { LEAST_PART_BYTES } from './homes/stored-visit.js';
export { partsOf } from './leaf-values.js';
export {
  type StagePhase,
  StageScheduler,
  type UnitLoader,
  type UseKind,
} from './stage-scheduler.js';
