// For packages that wrap modules: flat parameters, where they rest, and when they come and go. Programs
// that only train need nothing of it.

export { type FlatState, type FlatStateBytes, runAt, type StateRun } from '../optim/flat-state.js';
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
export { joinMembers } from '../optim/optimizer-state.js';
export type { ByteStore } from '../residence/byte-store.js';
export {
  type FlatHome,
  type FlatPart,
  type FlatTurn,
  type FlatVisit,
  flatHomeOf,
  type HomeSteps,
  occupyHomes,
  setFlatHome,
  visitFlats,
} from '../residence/flat-home.js';
export { HostBuffers } from '../residence/host-buffers.js';
export { RestingState, type StateSignature } from '../residence/resting-state.js';
export { StoreUse, storeUseOf } from '../residence/store-use.js';
export { StoredFlat, type StoredFlatOptions } from '../residence/stored-flat.js';
export { StoredModel, type StoredModelOptions } from '../residence/stored-model.js';
export { LEAST_PART_BYTES } from '../residence/stored-visit.js';
export type { AnyOptimizer, FlatProgress } from '../saves/held-flats.js';
export {
  HeldModule,
  type HeldModuleOptions,
  type LoadOptions,
  type PiecesOptions,
} from '../saves/held-module.js';
export {
  deferredParameter,
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
export { partsOf } from './leaf-values.js';
export {
  type StagePhase,
  StageScheduler,
  type UnitLoader,
  type UseKind,
} from './stage-scheduler.js';
