// The interface of a process group: what a rank may call, and the types of options and results.
// TransportGroup implements it over any Transport.

import type { ReduceOp, WireFormat } from '@shardweave/dtypes';
import type { OperationName, WireDType } from '../call-signature.js';
import type { StartOrder } from './start-order.js';
import type { TreeOptions } from './tree-call.js';

/**
 * The options of every call of a group: its time limit, its name in traces, and what ranks compare.
 */
export interface CallOptions {
  /**
   * The milliseconds without a byte's progress after which this call fails on all ranks. Default:
   * the group's.
   */
  readonly timeoutMs?: number;
  /** A name for traces, such as that of the unit that is gathered. Ranks don't compare it. */
  readonly tag?: string;
  /**
   * The purpose of the call, where sizes alone don't tell it: ranks compare it (a 32-bit hash of it
   * travels), and where they disagree the error has each rank's. Default: nothing is compared.
   */
  readonly identity?: string;
}

/** The options of `barrier`. */
export interface BarrierOptions extends CallOptions {
  /**
   * Set by a rank that cannot make the collective which is due, and makes a barrier in its place:
   * where another rank calls something else, or nothing in time, the job is aborted with this
   * reason. tellFailure uses it. Default: ranks that differ are a mismatch.
   */
  readonly elseAbort?: string;
}

/** The options of calls that move bytes without combining them. */
export interface MoveOptions extends CallOptions {
  /** The element type, which is only compared between ranks. Default: 'u8'. */
  readonly dtype?: WireDType;
}

/** How f32 travels in all-gathers and in sums and means. `dtype` must be 'f32'. */
export interface CompressionOptions {
  /**
   * The format: 'f16', 'bf16', or 'int8' with a scale for each block of 256 (for errors see
   * docs/collectives/operations.md). Sums are made in f32 nevertheless. Default: the group's, else
   * 'exact'.
   */
  readonly wire?: WireFormat | 'exact';
  /**
   * Error feedback: what earlier calls lost is added to the input, and what this call loses is left
   * here. It is as long as the input, has zeros at first, and is kept by the caller, one for each
   * tensor.
   */
  readonly residual?: Float32Array;
}

/** The options of `allGather`: the size of each rank's part, and how f32 travels. */
export interface PartsOptions extends MoveOptions, CompressionOptions {
  /**
   * The number of elements (of `dtype`) of each rank's part, in group order. Default: equal parts.
   */
  readonly counts?: readonly number[];
  /**
   * Called where the call leaves the own part of the output alone, which the caller then brings
   * there, after the call if others wrap the group: a device may copy without this thread. It must
   * not throw. It is not called where the call itself has to write there, as over MPI and with
   * `wire`. Default: the call copies.
   */
  readonly placeOwn?: (() => void) | undefined;
}

/**
 * The options of `allReduce`: the element type, the operation by which inputs are combined, and how
 * f32 travels.
 */
export interface ReduceCallOptions extends CallOptions, CompressionOptions {
  readonly dtype: WireDType;
  readonly op: ReduceOp;
  /**
   * The leaves that the ranks hold of a tree, in the order of which their sums of f32 are added, so
   * that bits don't depend on who holds which. `input` then has the sums of this rank's largest
   * nodes, one after the other, and `output` those of all leaves of the call: in allReduce all
   * leaves of the tree, and so one. Neither wire nor hosts change such a sum. Default: one part a
   * rank, in rank order.
   */
  readonly tree?: TreeOptions;
}

/** The options of `reduceScatter`: those of a reduction, and the size of each rank's part. */
export interface ReducePartsOptions extends ReduceCallOptions {
  /** The number of elements of each rank's part, in group order. Default: equal parts. */
  readonly counts?: readonly number[];
  /**
   * Called where the output has the other rank's part alone, to which the caller adds its own as
   * with `placeOwn`. It must not throw. It is called only where two ranks take a sum, without
   * `wire`, `hosts` or `tree`, not in place and not over MPI. Default: the call adds. A wrapper
   * that itself reads or adds outputs does not pass it on.
   */
  readonly addOwn?: (() => void) | undefined;
}

/** The options of `broadcast` and `gather`, in which one rank is the root. */
export interface RootedOptions extends MoveOptions {
  /** The group rank that sends (broadcast) or receives (gather). */
  readonly root: number;
}

/** The options of `send`: the receiver and the channel. */
export interface SendOptions extends CallOptions {
  /** The group rank of the receiver. */
  readonly to: number;
  /**
   * The number of the channel: messages of one sender, receiver and channel arrive in order.
   * Default: 0.
   */
  readonly channel?: number;
}

/** The options of `recv`: the sender and the channel. */
export interface RecvOptions extends CallOptions {
  /** The group rank of the sender. */
  readonly from: number;
  readonly channel?: number;
}

/**
 * The completed calls and payload bytes of one rank in one group; split's own exchange isn't
 * counted.
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
  /** The payload without headers; the README has the formula of each operation. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
}

/** One completed or failed call, as `onTrace` gets it. Times are those of performance.now(). */
export interface CollectiveTrace {
  readonly name: OperationName;
  /** The sequence number in its group; for send and recv the channel. */
  readonly seq: number;
  readonly startMs: number;
  readonly endMs: number;
  /** The size of the call; see CallSignature.byteLength. */
  readonly bytes: number;
  readonly rank: number;
  readonly group: string;
  readonly tag: string | undefined;
  readonly failed: boolean;
}

/** Called after each call of a group that completed or failed, on the rank's own thread. */
export type TraceHandler = (trace: CollectiveTrace) => void;

/**
 * One rank's end of a group of ranks.
 *
 * Order: a collective takes its number when it is called, so all ranks must call the same
 * collectives in the same order. Several may be in flight, and they finish in any order.
 *
 * Buffers: until the promise settles, inputs must not change and outputs must not be read. A call
 * allocates no buffers once its sizes have been seen. Results don't depend on what arrives first:
 * parts are combined in rank order in f32 and rounded once, so all ranks get the same bits.
 *
 * Failure: a lost peer, a mismatch, a timeout or an abort rejects everything pending and later, in
 * every group of the job and on every rank, with a CollectiveError that names the origin.
 */
export interface ProcessGroup extends AsyncDisposable {
  /** This rank's place in the group. */
  readonly rank: number;
  readonly worldSize: number;
  /** 'world', or an id that `split` derives from the parent's. */
  readonly id: string;
  /** The order in which users of the group that run at the same time start its collectives. */
  readonly starts: StartOrder;
  /**
   * Objects that users of the group keep with it, each under a symbol of its own: one per group.
   */
  readonly locals: Map<symbol, unknown>;
  /** Called after each collective; subgroups that are split off later inherit it. */
  onTrace: TraceHandler | undefined;

  /**
   * Fills `output` (the parts of all ranks) with each rank's `input`, which may lie at its place in
   * it.
   */
  allGather(input: Uint8Array, output: Uint8Array, options?: PartsOptions): Promise<void>;
  /**
   * Fills `output` with this rank's part of the combination of all `input`s (the parts of all
   * ranks). `output` may be that part of `input`, but must not overlap other parts.
   */
  reduceScatter(input: Uint8Array, output: Uint8Array, options: ReducePartsOptions): Promise<void>;
  /** Fills `output` with the combination of all `input`s; the two may be the same buffer. */
  allReduce(input: Uint8Array, output: Uint8Array, options: ReduceCallOptions): Promise<void>;
  /** Copies the root's `buffer` to `buffer` of all ranks. The root waits until all have called. */
  broadcast(buffer: Uint8Array, options: RootedOptions): Promise<void>;
  /**
   * Fills the root's `output` (worldSize * input bytes) with each rank's `input`; elsewhere
   * `output` is null.
   */
  gather(input: Uint8Array, output: Uint8Array | null, options: RootedOptions): Promise<void>;
  /** Resolves when `data` may be changed, which may be before the receiver has asked for it. */
  send(data: Uint8Array, options: SendOptions): Promise<void>;
  recv(buffer: Uint8Array, options: RecvOptions): Promise<void>;
  /** Resolves when all ranks have called it. */
  barrier(options?: BarrierOptions): Promise<void>;
  /**
   * Forms new groups, as a collective: the ranks of equal `color` (an integer) form a group,
   * ordered by `key` (default: rank). It has its own sequence over the same links, so splitting
   * with one color gives a second independent sequence.
   */
  split(color: number, key?: number): Promise<ProcessGroup>;

  /**
   * Zeroed memory of the kind that the transport moves fastest (over shm, shared by the threads of
   * a process). It belongs to the caller until `release`.
   */
  allocate(byteLength: number): Uint8Array;
  /** Tells the transport about shared memory of the caller's, so that it moves that as fast. */
  register(buffer: SharedArrayBuffer): void;
  /**
   * Gives back what `allocate` gave, or forgets a registered buffer. No call with it may be
   * pending.
   */
  release(memory: Uint8Array | ArrayBufferLike): void;

  stats(): CollectiveStats;
  /** Ends the whole job: rejects everything pending and later, on all ranks. */
  abort(reason: string): void;
  /**
   * Leaves the group. A subgroup only refuses further calls. The world says goodbye to the peers
   * and frees the links; peers fail only if they still need this rank.
   */
  close(): Promise<void>;
}
