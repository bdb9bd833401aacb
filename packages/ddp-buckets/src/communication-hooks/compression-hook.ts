// Sends gradients in fewer bytes: they are rounded to 16 bits or to int8 for the wire, and still
// added in f32.

import { WIRE_FORMATS, type WireFormat } from '@shardweave/dtypes';
import { FLAG, type OptionRules, oneOf, optional } from '@shardweave/tensor-core/options';
import type { BucketLayout } from '../bucket-layout.js';
import { checkOptions } from '../check-options.js';
import { allReduceHook } from './all-reduce-hook.js';
import type { HookBucket, StatefulHook } from './communication-hook.js';
import { HookMemory } from './hook-memory.js';

/**
 * The wire format of compressed gradients, the same on all ranks, and whether rounding errors are
 * added to the next step.
 */
export interface CompressionHookOptions {
  /** The format in which f32 travels; docs/collectives/operations.md lists bytes and errors. */
  readonly wire: WireFormat;
  /**
   * Adds what a step loses by rounding to the next step, for each rank and gradient; it takes as
   * much host memory as the gradients. Default: true with int8, which needs it, else false.
   */
  readonly errorFeedback?: boolean;
}

const RULES: OptionRules<CompressionHookOptions> = {
  wire: oneOf(...WIRE_FORMATS),
  errorFeedback: optional(FLAG),
};

/**
 * All-reduces f32 buckets in the format `wire`; 16-bit buckets go as they are. A hook remembers the
 * errors of one wrapper on one rank.
 * @example
 * ```ts
 * import { createMemoryGroup } from '@shardweave/collectives';
 * import { compressionHook, DistributedDataParallel } from '@shardweave/ddp-buckets';
 * import { Linear } from '@shardweave/nn';
 * import { Device, mean } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const ranks = createMemoryGroup(2).map(async (processGroup) => {
 *   const device = new Device(backend);
 *   const layer = new Linear(device, { inFeatures: 64, outFeatures: 64, bias: false });
 *   const model = new DistributedDataParallel(layer, {
 *     processGroup,
 *     communicationHook: compressionHook({ wire: 'bf16' }),
 *   });
 *   const step = async () => {
 *     const before = processGroup.stats().bytesSent;
 *     await device.scope(async () => {
 *       await mean(await model.call(device.full([4, 64], 1))).backward();
 *     });
 *     return processGroup.stats().bytesSent - before;
 *   };
 *   await step(); // ranks agree on their buckets in the first
 *   const bytesSent = await step(); // 64 * 64 gradients of 2 bytes each
 *   await processGroup.close();
 *   return bytesSent;
 * });
 * console.log(await Promise.all(ranks)); // logs [ 8192, 8192 ]
 * await backend.dispose();
 * ```
 */
export function compressionHook(options: CompressionHookOptions): StatefulHook {
  checkOptions('compressionHook', options, RULES);
  const { wire, errorFeedback = wire === 'int8' } = options;
  const memory = new HookMemory(wire, ['error']);
  let residuals = new WeakMap<BucketLayout, Float32Array>();
  const residualOf = ({ layout, members }: HookBucket): Float32Array => {
    const known = residuals.get(layout);
    if (known !== undefined) {
      return known;
    }
    const residual = new Float32Array(layout.elementCount);
    for (const { path, offset, size } of members) {
      memory.place(path, 'error', residual.subarray(offset, offset + size));
    }
    residuals.set(layout, residual);
    return residual;
  };
  return {
    name: wire,
    isSerial: false,
    reduce: async (bucket) => {
      if (bucket.dtype !== 'f32') {
        return allReduceHook.reduce(bucket);
      }
      const { bytes, group, tag, identity } = bucket;
      memory.requireOwner(bucket);
      const residual = errorFeedback ? residualOf(bucket) : undefined;
      return group.allReduce(bytes, bytes, {
        dtype: 'f32',
        op: 'sum',
        wire,
        tag,
        identity,
        ...(residual === undefined ? {} : { residual }),
      });
    },
    forget: (paths) => memory.zero(paths, 'error'),
    stateDict: () => memory.stateDict(),
    loadStateDict: (state) => {
      memory.load(state);
      residuals = new WeakMap();
    },
  };
}
