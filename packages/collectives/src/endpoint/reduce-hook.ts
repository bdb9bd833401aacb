// Combines parts: by the package's wasm in the rank's own thread, unless a group is given a hook.

import { byteSize, RankSum, type ReduceOptions } from '@shardweave/dtypes';
import type { Turns } from './turns.js';

/**
 * The operation that a ReduceHook is asked for: op, dtypes and divisor, and a signal that tells
 * when the call is over.
 */
export interface ReduceHookOptions extends ReduceOptions {
  /**
   * Aborted when the call has failed, after which `output` is the caller's again and must not be
   * written.
   */
  readonly signal: AbortSignal;
}

/**
 * Combines `parts`, in their order, into `output`, as `RankSum.reduce` of @shardweave/dtypes does:
 * in f32, rounded to the dtype once. Results are equal bit for bit between ranks and transports
 * only if a hook does exactly that. `output` may be one of the parts. Large operations come in
 * segments, one after another within a call. A rejection ends the job. `inputDtype` and `divisor`
 * are set only with the option `hosts`, `merges` only with a `tree`.
 */
export type ReduceHook = (
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceHookOptions,
) => Promise<void> | void;

/** The part of `RankSum` that is used here. */
export type PartReducer = Pick<RankSum, 'reduce'>;

/** Combines parts for a call, and stops writing when the call is over. */
export type Combine = (
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceOptions,
  call: { readonly isOver: boolean; readonly signal: AbortSignal },
) => Promise<void> | void;

/**
 * The input of one slice, which takes about 1 ms for f16, the slowest dtype. It holds a whole
 * number of the reducer's own slices.
 */
const SLICE_INPUT_BYTES = 2 ** 20;
const SLICE_GRAIN_ELEMENTS = 16 * 1024;

/** Gives one reducer to all who ask, made when the first one does. */
export function sharedReducer(): () => Promise<PartReducer> {
  let made: Promise<PartReducer> | undefined;
  return () => {
    made ??= RankSum.create();
    return made;
  };
}

/** Combines by means of a hook. */
export function combineByHook(hook: ReduceHook): Combine {
  return (parts, output, options, { signal }) => hook(parts, output, { ...options, signal });
}

/** Combines by the package's wasm, in slices, with turns of the event loop between them. */
export function combineInThread(create: () => Promise<PartReducer>, turns: Turns): Combine {
  let made: Promise<PartReducer> | undefined;
  let reducer: PartReducer | undefined;
  return async (parts, output, options, call) => {
    made ??= create();
    reducer ??= await made;
    const inputSize = byteSize(options.inputDtype ?? options.dtype);
    const outputSize = byteSize(options.dtype);
    const elements = output.byteLength / outputSize;
    if (elements <= SLICE_GRAIN_ELEMENTS) {
      return call.isOver ? undefined : reducer.reduce(parts, output, options);
    }
    const wanted = SLICE_INPUT_BYTES / inputSize / parts.length;
    const step = Math.max(1, Math.floor(wanted / SLICE_GRAIN_ELEMENTS)) * SLICE_GRAIN_ELEMENTS;
    for (let at = 0; at < elements; at += step) {
      if (turns.next() !== undefined) {
        await turns.wait();
      }
      if (call.isOver) {
        return;
      }
      const slices = parts.map((part) => part.subarray(at * inputSize, (at + step) * inputSize));
      const target = output.subarray(at * outputSize, (at + step) * outputSize);
      await reducer.reduce(slices, target, options);
    }
  };
}
