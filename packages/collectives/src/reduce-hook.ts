// How parts are combined: our wasm in the rank's own thread, unless a group is given a hook.

import type { ReduceOptions } from '@shardweave/dtypes';

/**
 * Combines `parts`, in their order, into `output`, as `Reducer.reduce` of @shardweave/dtypes does:
 * in f32, rounded to the dtype once. Results are equal bit for bit between ranks and transports only
 * if a hook does exactly that. `output` may be one of the parts. Large operations come in segments,
 * several of which may be pending; a rejection ends the job.
 */
export type ReduceHook = (
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceOptions,
) => Promise<void> | void;
