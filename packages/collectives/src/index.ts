export type { PartLayout } from './algorithms/part-layout.js';
export {
  type CallDType,
  type CallSignature,
  describeCall,
  isSameCall,
  type LayoutDetails,
  type OperationName,
  type WireDType,
} from './call-signature.js';
export { type Clock, systemClock } from './clock.js';
export type { Call, CallSpec } from './endpoint/call.js';
export { Endpoint, type EndpointOptions, type ProcessServices } from './endpoint/endpoint.js';
export type { PartReducer, ReduceHook, ReduceHookOptions } from './endpoint/reduce-hook.js';
export {
  CollectiveAbortedError,
  CollectiveError,
  type CollectiveErrorCode,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  CollectiveUsageError,
  type ErrorPlace,
  GroupClosedError,
  JoinError,
  PeerFailedError,
  PeerLostError,
  RelayLostError,
} from './errors.js';
export type { Failure, PeerCall } from './failure.js';
export {
  agree,
  agreeOnTexts,
  type Exchange,
  type PartOutcome,
  type RankFailure,
  requireSameText,
} from './group/agree.js';
export {
  compareTexts,
  type ExchangeCall,
  exchangeTexts,
  exchangeWords,
} from './group/exchange-texts.js';
export { checkGroupOptions, createWorldGroup, type GroupOptions } from './group/group-options.js';
export type { NativeCollectives } from './group/native-collectives.js';
export type {
  BarrierOptions,
  CallOptions,
  CollectiveStats,
  CollectiveTrace,
  MoveOptions,
  PartsOptions,
  ProcessGroup,
  RecvOptions,
  ReduceCallOptions,
  ReducePartsOptions,
  RootedOptions,
  SendOptions,
  TraceHandler,
} from './group/process-group.js';
export { type StartOptions, StartOrder } from './group/start-order.js';
export { type ToldFailure, tellFailure, toldFailure } from './group/tell-failure.js';
export { TransportGroup, type TransportGroupOptions } from './group/transport-group.js';
export type { TreeOptions } from './group/tree-call.js';
export type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from './transport.js';
export { createMemoryGroup, type MemoryGroupOptions } from './transports/memory.js';
