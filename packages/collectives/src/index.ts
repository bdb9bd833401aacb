export {
  type CallSignature,
  describeCall,
  isSameCall,
  type OperationName,
  type WireDType,
} from './call-signature.js';
export { type Clock, systemClock } from './clock.js';
export { Endpoint, type EndpointOptions } from './endpoint.js';
export {
  CollectiveAbortedError,
  CollectiveError,
  type CollectiveErrorCode,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  CollectiveUsageError,
  GroupClosedError,
  JoinError,
  PeerLostError,
  RelayLostError,
} from './errors.js';
export { compareTexts, type ExchangeCall, exchangeTexts, exchangeWords } from './exchange-texts.js';
export type { Failure, PeerCall } from './failure.js';
export { checkGroupOptions, createWorldGroup, type GroupOptions } from './group-options.js';
export type { NativeCollectives } from './native-collectives.js';
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
} from './process-group.js';
export type { PartReducer, ReduceHook, ReduceHookOptions } from './reduce-hook.js';
export { type StartOptions, StartOrder } from './start-order.js';
export { type ToldFailure, tellFailure, toldFailure } from './tell-failure.js';
export type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from './transport.js';
export { TransportGroup, type TransportGroupOptions } from './transport-group.js';
export { createDryGroup, type DryGroupOptions } from './transports/dry.js';
export { createMemoryGroup, type MemoryGroupOptions } from './transports/memory.js';
export { withDelay } from './with-delay.js';
