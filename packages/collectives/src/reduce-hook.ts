// How parts are combined: our wasm in the rank's own thread, unless a group is given a hook.

import type { ReduceOptions, Reducer } from '@shardweave/dtypes';
import type { Turns } from './turns.js';

export interface ReduceHookOptions extends ReduceOptions {
  /** Aborted when the call has failed: `output` is the caller's again and must not be written. */
  readonly signal: AbortSignal;
}

/**
 * Combines `parts`, in their order, into `output`, as `Reducer.reduce` of @shardweave/dtypes does:
 * in f32, rounded to the dtype once. Results are equal bit for bit between ranks and transports only
 * if a hook does exactly that. `output` may be one of the parts. Large operations come in segments,
 * one after another within a call; a rejection ends the job.
 */
export type ReduceHook = (
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceHookOptions,
) => Promise<void> | void;

/** What of a Reducer is used here. */
export type PartReducer = Pick<Reducer, 'reduce'>;

/** Of input, in one go: about 1 ms for f16, the slowest dtype; the reducer's own slices fit in. */
const SLICE_INPUT_BYTES = 2 ** 20;
const SLICE_GRAIN_BYTES = 64 * 1024;

/** Our own: in slices, with the event loop's turns between them; writes nothing once aborted. */
export function reduceInThread(create: () => Promise<PartReducer>, turns: Turns): ReduceHook {
  let made: Promise<PartReducer> | undefined;
  return async (parts, output, { dtype, op, signal }) => {
    made ??= create();
    const reducer = await made;
    const grains = Math.floor(SLICE_INPUT_BYTES / SLICE_GRAIN_BYTES / parts.length);
    const sliceBytes = Math.max(1, grains) * SLICE_GRAIN_BYTES;
    for (let at = 0; at < output.byteLength; at += sliceBytes) {
      if (turns.next() !== undefined) {
        await turns.wait();
      }
      if (signal.aborted) {
        return;
      }
      const slices = parts.map((part) => part.subarray(at, at + sliceBytes));
      await reducer.reduce(slices, output.subarray(at, at + sliceBytes), { dtype, op });
    }
  };
}
