// The interface of a process group: what a rank may call, and the types of options and results.
// Implemented by TransportGroup over any Transport.

import type { ReduceOp, WireFormat } from '@shardweave/dtypes';
import type { OperationName, WireDType } from '../endpoint/call-signature.js';
import type { StartOrder } from './start-order.js';

export interface CallOptions {
  /**
   * Milliseconds without a byte's progress until this call fails on all ranks. Default: the
   * group's.
   */
  readonly timeoutMs?: number;
  /** A name for traces, for example of the unit that is gathered. Not compared between ranks. */
  readonly tag?: string;
  /**
   * What the call is for, where sizes alone don't tell: ranks compare it (a 32-bit hash of it
   * travels), and the error of ranks that disagree has each rank's. Default: nothing is compared.
   */
  readonly identity?: string;
}

export interface BarrierOptions extends CallOptions {
  /**
   * For a rank that cannot make the collective which is due, and makes a barrier in its place:
   * where a rank calls something else, or none in time, the job is aborted with this reason.
   * `tellFailure` is made of it. Default: ranks that differ are a mismatch.
   */
  readonly elseAbort?: string;
}

export interface MoveOptions extends CallOptions {
  /** Element type, only compared between ranks. Default: 'u8'. */
  readonly dtype?: WireDType;
}

/** How f32 travels, in all-gathers and in sums and means. `dtype` must be 'f32'. */
export interface CompressionOptions {
  /**
   * Rounded to 16 bits, or to int8 with a scale for each block of 256 (errors: see
   * docs/collectives/operations.md). Sums are made in f32 all the same. Default: the group's, else
   * 'exact'.
   */
  readonly wire?: WireFormat | 'exact';
  /**
   * Error feedback: what earlier calls lost is added to the input, and what this one loses is left
   * here. As long as the input, zeros at first; one for each tensor, kept by the caller.
   */
  readonly residual?: Float32Array;
}

export interface PartsOptions extends MoveOptions, CompressionOptions {
  /** Elements (of `dtype`) of each rank's part, in group order. Default: equal parts. */
  readonly counts?: readonly number[];
}

export interface ReduceCallOptions extends CallOptions, CompressionOptions {
  readonly dtype: WireDType;
  readonly op: ReduceOp;
}

export interface ReducePartsOptions extends ReduceCallOptions {
  /** Elements of each rank's part, in group order. Default: equal parts. */
  readonly counts?: readonly number[];
}

export interface RootedOptions extends MoveOptions {
  /** Group rank that sends (broadcast) or receives (gather). */
  readonly root: number;
}

export interface SendOptions extends CallOptions {
  /** Group rank of the receiver. */
  readonly to: number;
  /** Messages of one channel (sender, receiver, number) arrive in order. Default: 0. */
  readonly channel?: number;
}

export interface RecvOptions extends CallOptions {
  /** Group rank of the sender. */
  readonly from: number;
  readonly channel?: number;
}

/**
 * Completed calls and payload bytes of one rank in one group; split's own exchange isn't counted.
 */
export interface CollectiveStats {
  readonly allGathers: number;
  readonly reduceScatters: number;
  readonly allReduces: number;
  readonly broadcasts: number;
  readonly gathers: number;
  readonly sends: number;
  readonly recvs: number;
  readonly barriers: number;
  /** Payload only, no headers; the README has the formula of each operation. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
}

/** One completed or failed call, as `onTrace` gets it. Times as of performance.now(). */
export interface CollectiveTrace {
  readonly name: OperationName;
  /** Sequence number in its group; the channel for send and recv. */
  readonly seq: number;
  readonly startMs: number;
  readonly endMs: number;
  /** The call's own size: see CallSignature.byteLength. */
  readonly bytes: number;
  readonly rank: number;
  readonly group: string;
  readonly tag: string | undefined;
  readonly failed: boolean;
}

export type TraceHandler = (trace: CollectiveTrace) => void;

/**
 * One rank's end of a group of ranks.
 *
 * Order: a collective takes its number when it is called, so all ranks must call the same
 * collectives in the same order; several may be in flight, and they finish in any order.
 * Buffers: inputs must not change and outputs must not be read until the promise settles; a call
 * allocates no buffers once its sizes have been seen. Results don't depend on what arrives first:
 * parts are combined in rank order in f32 and rounded once, so all ranks get the same bits.
 * Failure: a lost peer, a mismatch, a timeout or an abort rejects everything pending and later, in
 * every group of the job and on every rank, with a CollectiveError that names the origin.
 */
export interface ProcessGroup extends AsyncDisposable {
  /** This rank's place in the group. */
  readonly rank: number;
  readonly worldSize: number;
  /** 'world', or derived from the parent's by `split`. */
  readonly id: string;
  /** The order in which those who use the group at once start its collectives. */
  readonly starts: StartOrder;
  /** What those who use the group keep with it, each by a symbol of its own: one of it a group. */
  readonly locals: Map<symbol, unknown>;
  /** Called after each collective; subgroups split later inherit it. */
  onTrace: TraceHandler | undefined;

  /** `output` (the parts of all ranks) gets each rank's `input`, which may be its place in it. */
  allGather(input: Uint8Array, output: Uint8Array, options?: PartsOptions): Promise<void>;
  /**
   * `output` gets this rank's part of the combination of all `input`s (the parts of all ranks); it
   * may be that part of `input`, but not lie over others.
   */
  reduceScatter(input: Uint8Array, output: Uint8Array, options: ReducePartsOptions): Promise<void>;
  /** `output` gets the combination of all `input`s; the two may be one. */
  allReduce(input: Uint8Array, output: Uint8Array, options: ReduceCallOptions): Promise<void>;
  /** `buffer` of the root to `buffer` of all. The root waits until all have called. */
  broadcast(buffer: Uint8Array, options: RootedOptions): Promise<void>;
  /** The root's `output` (worldSize * input bytes) gets each `input`; null elsewhere. */
  gather(input: Uint8Array, output: Uint8Array | null, options: RootedOptions): Promise<void>;
  /** Resolves when `data` may be changed; the receiver may not have asked for it yet. */
  send(data: Uint8Array, options: SendOptions): Promise<void>;
  recv(buffer: Uint8Array, options: RecvOptions): Promise<void>;
  /** Resolves when all ranks have called it. */
  barrier(options?: BarrierOptions): Promise<void>;
  /**
   * A collective: ranks of equal `color` (an integer) form a new group, ordered by `key` (default:
   * rank). It has its own sequence over the same links, so splitting with one color gives a second
   * independent sequence.
   */
  split(color: number, key?: number): Promise<ProcessGroup>;

  /**
   * Memory that the transport moves fastest (shared by the threads of a process over shm), zeroed.
   * The caller's until `release`.
   */
  allocate(byteLength: number): Uint8Array;
  /** Makes shared memory of the caller's known to the transport, so that it is moved as fast. */
  register(buffer: SharedArrayBuffer): void;
  /**
   * Gives back what `allocate` gave, or forgets a registered buffer. No call with it is pending.
   */
  release(memory: Uint8Array | ArrayBufferLike): void;

  stats(): CollectiveStats;
  /** Ends the whole job: rejects everything pending and later, on all ranks. */
  abort(reason: string): void;
  /**
   * Leaves. On a subgroup it only refuses further calls; on the world it says goodbye to the peers
   * and frees links. Peers fail only if they still need this rank.
   */
  close(): Promise<void>;
}
