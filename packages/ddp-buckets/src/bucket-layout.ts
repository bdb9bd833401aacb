// Decides which gradients travel together, and where each lies in its bucket. It is arithmetic over
// indices of the active parameters, and the same on every rank.

import { byteSize, type DType } from '@shardweave/dtypes';
import { alignElements, type FlatLayout, flatLayout } from '@shardweave/nn/flat';

/** The dtypes that gradients may have, in the order in which unfinished buckets are closed. */
export const BUCKET_DTYPES = ['f16', 'bf16', 'f32'] as const satisfies readonly DType[];

/** The size from which a bucket is full, in elements or in bytes. */
export type BucketSizes =
  | { readonly elements: number }
  | { readonly firstBytes: number; readonly capBytes: number };

/** The part of a parameter that layouts depend on. */
export interface BucketParameter {
  readonly size: number;
  readonly dtype: DType;
}

export interface BucketRule {
  readonly sizes: BucketSizes;
  /** Parameters that close their bucket. Where there are any, nothing else closes a bucket. */
  readonly triggers: ReadonlySet<number>;
  /**
   * The most elements that one bucket may hold, gaps included; a larger parameter has a bucket of
   * its own.
   */
  readonly maxElements: number;
}

/** The layout of a bucket's gradients in one flat buffer. The gaps between them travel too. */
export interface BucketLayout extends FlatLayout {
  readonly dtype: DType;
  /** The indices of its parameters. */
  readonly members: readonly number[];
}

/** Deals the parameters out to buckets in `order`; each dtype has buckets of its own. */
export function assignBuckets(
  order: readonly number[],
  parameters: readonly BucketParameter[],
  rule: BucketRule,
): number[][] {
  const closed: number[][] = [];
  const running = new Map<DType, RunningBucket>();
  const numClosed = new Map<DType, number>();
  const close = (dtype: DType) => {
    const bucket = running.get(dtype);
    if (bucket === undefined) {
      return;
    }
    closed.push(bucket.members);
    running.delete(dtype);
    numClosed.set(dtype, (numClosed.get(dtype) ?? 0) + 1);
  };
  for (const index of order) {
    const { size, dtype } = parameters[index]!;
    const before = running.get(dtype);
    if (before !== undefined && before.paddedElements + alignElements(size) > rule.maxElements) {
      close(dtype);
    }
    const bucket = running.get(dtype) ?? { members: [], elements: 0, paddedElements: 0 };
    running.set(dtype, bucket);
    bucket.members.push(index);
    bucket.elements += size;
    bucket.paddedElements += alignElements(size);
    const isFull =
      rule.triggers.size > 0
        ? rule.triggers.has(index)
        : bucket.elements >= fullFrom(rule.sizes, dtype, numClosed.get(dtype) ?? 0);
    if (isFull) {
      close(dtype);
    }
  }
  for (const dtype of BUCKET_DTYPES) {
    close(dtype);
  }
  return closed;
}

/** Lays out the members of one bucket, in order. */
export function bucketLayout(
  members: readonly number[],
  parameters: readonly BucketParameter[],
): BucketLayout {
  const { dtype } = parameters[members[0]!]!;
  return { ...flatLayout(members.map((index) => parameters[index]!.size)), dtype, members };
}

interface RunningBucket {
  readonly members: number[];
  elements: number;
  paddedElements: number;
}

/** The number of elements from which bucket `ordinal` of a dtype is full. */
function fullFrom(sizes: BucketSizes, dtype: DType, ordinal: number): number {
  if ('elements' in sizes) {
    return sizes.elements;
  }
  return (ordinal === 0 ? sizes.firstBytes : sizes.capBytes) / byteSize(dtype);
}
