// The seam between buckets and the wire: how the gradients of one bucket are added up over ranks.
//
// - Ordering: hooks of one group are called in the order of the buckets, on every rank alike. A
//   hook that makes a single collective call must make it before its first await. A hook that makes
//   several sets isSerial, and is called when the bucket before it has ended.
// - Ownership: `bytes` belongs to the hook until its promise settles, and then to the caller again.
// - Failure: a rejection fails the backward of this rank and ends the job; the errors of the other
//   ranks name this one.
// - Numbers: the result must have equal bits on all ranks, or their weights drift apart.

import type { ProcessGroup } from '@shardweave/collectives';
import type { DType } from '@shardweave/dtypes';
import type { BucketLayout } from '../bucket-layout.js';

/** One parameter's gradient in a bucket. */
export interface BucketMember {
  /** The path in the module. */
  readonly path: string;
  readonly shape: readonly number[];
  /** The offset of its first element in the bucket. */
  readonly offset: number;
  /** The number of its elements. */
  readonly size: number;
}

/** A bucket of gradients on the host. */
export interface HookBucket {
  /** The bucket's place in the order of reductions. */
  readonly index: number;
  readonly isLast: boolean;
  /** The tag of its collectives in traces. */
  readonly tag: string;
  /**
   * The identity of its collectives, which ranks compare: the number of the backward and of the
   * bucket.
   */
  readonly identity: string;
  /** f32, f16 or bf16. */
  readonly dtype: DType;
  /** This rank's gradients, divided by gradientPredivideFactor, with zeros in the gaps. */
  readonly bytes: Uint8Array;
  readonly members: readonly BucketMember[];
  /**
   * The same object in every step until buckets are made anew, so it serves as the key of what a
   * hook remembers.
   */
  readonly layout: BucketLayout;
  readonly group: ProcessGroup;
  /** The same object for all buckets of one wrapper, and for no others. */
  readonly owner: object;
}

/** What a hook remembers on this rank, by parameter and kind, such as 'h.0.weight error'. */
export type HookStateDict = ReadonlyMap<string, Float32Array>;

/** Adds a bucket of gradients up over ranks. */
export interface CommunicationHook {
  /** The name of the hook in errors and traces. */
  readonly name: string;
  /** Whether it makes more than one collective call for a bucket. */
  readonly isSerial: boolean;
  /**
   * The hook's options as text. They must be the same on all ranks, which compare them together
   * with the name. Default none.
   */
  readonly settings?: string;
  /** Replaces `bucket.bytes` by its sum over ranks, exact or nearly so. */
  reduce(bucket: HookBucket): Promise<void>;
  /**
   * Called where gradients of these parameters were reduced, and zeroed before any step used them,
   * or where the backward failed: what compression took from them must not come back. Default: the
   * hook remembers nothing of a step.
   */
  forget?(paths: readonly string[]): void;
}

/** A hook with a memory, which a run that is to go on as if it had not stopped saves and loads. */
export interface StatefulHook extends CommunicationHook {
  /** Copies of what this rank remembers, which differs by rank: each saves its own. */
  stateDict(): HookStateDict;
  /**
   * Goes on from what stateDict returned on this rank. It may be called between steps, on all ranks
   * alike.
   * @throws {DdpConfigError} for what stateDict of such a hook cannot have returned
   */
  loadStateDict(state: HookStateDict): void;
}
