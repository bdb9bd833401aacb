// The trainer as a library; main.ts is the command.

export {
  DiskFullError,
  DivergedError,
  RankFailedError,
  TrainerError,
  UsageError,
} from './errors.js';
export type { RunRecord } from './output/run-records.js';
export type {
  CreateOptions,
  OwnModel,
  OwnModelFile,
  OwnRows,
  TokenBatch,
} from './own-model/own-model.js';
export type { Best, SaveWritten } from './rank/events.js';
export {
  type Evaluation,
  type Sample,
  type TrainConfig,
  type TrainedStep,
  type TrainOptions,
  type TrainResult,
  train,
} from './train.js';
