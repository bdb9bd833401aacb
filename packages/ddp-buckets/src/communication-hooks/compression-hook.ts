// Gradients in fewer bytes: rounded to 16 bits or to int8 on the way, added in f32 all the same.

import type { WireFormat } from '@shardweave/dtypes';
import type { BucketLayout } from '../bucket-layout.js';
import { allReduceHook } from './all-reduce-hook.js';
import type { CommunicationHook, HookBucket } from './communication-hook.js';

/** The wire format of compressed gradients, and whether what it loses is fed back. */
export interface CompressionHookOptions {
  /** How f32 travels; see the README of collectives for bytes and errors. */
  readonly wire: WireFormat;
  /**
   * What a step loses is added to the next one, by rank and gradient; it takes as much host memory
   * as the gradients. Default: with int8, which needs it.
   */
  readonly errorFeedback?: boolean;
}

/**
 * All-reduces of f32 buckets in `wire`; 16-bit buckets go as they are. What is remembered is that
 * of one wrapper, and is lost when its buckets are made anew.
 */
export function compressionHook(options: CompressionHookOptions): CommunicationHook {
  const { wire, errorFeedback = wire === 'int8' } = options;
  const residuals = new WeakMap<BucketLayout, Float32Array>();
  return {
    name: wire,
    isSerial: false,
    reduce: (bucket) => {
      if (bucket.dtype !== 'f32') {
        return allReduceHook.reduce(bucket);
      }
      const { bytes, group, tag, identity } = bucket;
      const residual = errorFeedback ? residualOf(residuals, bucket) : undefined;
      return group.allReduce(bytes, bytes, {
        dtype: 'f32',
        op: 'sum',
        wire,
        tag,
        identity,
        ...(residual === undefined ? {} : { residual }),
      });
    },
  };
}

function residualOf(
  residuals: WeakMap<BucketLayout, Float32Array>,
  { layout }: HookBucket,
): Float32Array {
  const known = residuals.get(layout);
  if (known !== undefined) {
    return known;
  }
  const residual = new Float32Array(layout.elementCount);
  residuals.set(layout, residual);
  return residual;
}
