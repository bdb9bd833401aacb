// The seam between buckets and the wire: how the gradients of one bucket are added up over ranks.
//
// Ordering   Hooks of one group are called in the order of the buckets, on every rank alike. One
// that
//            makes a single collective call must make it before its first await; one that makes
//            several says isSerial, and is called when the bucket before it has ended.
// Ownership  `bytes` is the hook's until its promise settles, and the caller's again then. Failure
// A rejection fails the backward of this rank and ends the job: the others' errors name it. Numbers
// The result must have equal bits on all ranks, or their weights drift apart.

import type { ProcessGroup } from '@shardweave/collectives';
import type { DType } from '@shardweave/dtypes';
import type { BucketLayout } from '../bucket-layout.js';

/** One parameter's gradient in a bucket. */
export interface BucketMember {
  /** Its path in the module. */
  readonly path: string;
  readonly shape: readonly number[];
  /** First element in the bucket. */
  readonly offset: number;
  /** Elements. */
  readonly size: number;
}

/** A bucket of gradients on the host. */
export interface HookBucket {
  /** In the order of reductions. */
  readonly index: number;
  readonly isLast: boolean;
  /** What its collectives are called in traces. */
  readonly tag: string;
  /** What ranks should compare of its collectives: the number of the backward and of the bucket. */
  readonly identity: string;
  /** f32, f16 or bf16. */
  readonly dtype: DType;
  /** This rank's gradients, divided by gradientPredivideFactor; zeros in the gaps. */
  readonly bytes: Uint8Array;
  readonly members: readonly BucketMember[];
  /** The same object in every step until buckets are made anew: a key for what a hook remembers. */
  readonly layout: BucketLayout;
  readonly group: ProcessGroup;
}

/** The way a bucket of gradients is added up over ranks. */
export interface CommunicationHook {
  /** For errors and traces. */
  readonly name: string;
  /** Whether it calls more than one collective a bucket. */
  readonly isSerial: boolean;
  /** Options that must be the same on all ranks, as text; compared with the name. Default none. */
  readonly settings?: string;
  /** Replaces `bucket.bytes` by its sum over ranks, exact or nearly so. */
  reduce(bucket: HookBucket): Promise<void>;
}
