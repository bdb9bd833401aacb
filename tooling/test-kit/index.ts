// What tests of several packages share. See README.md.

export { expectClose, largestDifference, TOLERANCE } from './closeness.ts';
export { forwardBackward, optimizerGroups, TINY, tokens } from './gpt2.ts';
export {
  afterFailure,
  type Grouped,
  groupCall,
  hashOf,
  trainGroupsAlone,
  trainInGroups,
} from './grouped.ts';
export {
  DIM,
  evaluate,
  freeze,
  inputs,
  layer,
  lossOf,
  moduleOf,
  outputOf,
  type Rows,
  rowsOf,
  Stack,
  trainOnce,
} from './models.ts';
export { onRanks, type Rank, sharedBackend } from './ranks.ts';
export { errorOf, errorsOnRanks, loose, refusal, rejectionOf } from './refusals.ts';
export {
  expectAsAlone,
  expectEqualBits,
  expectTrainedAsOneProcess,
  type ModelProgram,
  meanLosses,
  type OverRanks,
  type Program,
  stepped,
  type Trained,
  trainAlone,
  trainAs,
  training,
  type Wrap,
} from './training.ts';
export { textOf, type Weights, weightsOf } from './weights.ts';
