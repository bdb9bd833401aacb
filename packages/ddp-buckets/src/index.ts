// DistributedDataParallel: gradients averaged over ranks, in buckets, while backward runs.

export type { BucketLayout } from './bucket-layout.js';
export { allReduceHook } from './communication-hooks/all-reduce-hook.js';
export type {
  BucketMember,
  CommunicationHook,
  HookBucket,
  HookStateDict,
  StatefulHook,
} from './communication-hooks/communication-hook.js';
export {
  type CompressionHookOptions,
  compressionHook,
} from './communication-hooks/compression-hook.js';
export { type PowerSgdOptions, powerSgdHook } from './communication-hooks/power-sgd-hook.js';
export { DistributedDataParallel, type JoinOptions } from './distributed-data-parallel.js';
export {
  DdpConfigError,
  DdpError,
  DdpStateError,
  DdpStructureError,
  DdpUnusedParameterError,
} from './errors.js';
export type { DdpOptions } from './options.js';
export type { StepTimings } from './step-timings.js';
