// Adds up reduced gradients on the host, with the same bits as the device's kernels.

import { viewAs, yieldToEventLoop } from '@shardweave/dtypes';

/**
 * How many elements are added between two looks at the clock. They take well below a millisecond.
 */
const SLICE_ELEMENTS = 64 * 1024;
/**
 * After this time sockets and timers get a turn. The RankSum of @shardweave/dtypes uses the same.
 */
const TURN_MS = 8;

export interface AddOptions {
  /**
   * The factor of the values. Each product is rounded to f32, and negative zeros become positive
   * ones. 'none' adds the values as they are.
   */
  readonly scale: number | 'none';
  /** Whether `total` holds nothing yet, so that the values replace it. */
  readonly isFirst: boolean;
}

/**
 * Computes total += values * scale, or total = values * scale where it is the first. Both are f32
 * bytes of equal length.
 */
export async function addScaled(
  total: Uint8Array,
  values: Uint8Array,
  { scale, isFirst }: AddOptions,
): Promise<void> {
  const sum = viewAs(total, 'f32') as Float32Array;
  const added = viewAs(values, 'f32') as Float32Array;
  let turnEnds = performance.now() + TURN_MS;
  for (let start = 0; start < sum.length; start += SLICE_ELEMENTS) {
    const target = sum.subarray(start, start + SLICE_ELEMENTS);
    let slice = added.subarray(start, start + SLICE_ELEMENTS);
    if (scale !== 'none') {
      slice = scaled(slice, Math.fround(scale));
    }
    if (isFirst) {
      target.set(slice);
    } else {
      for (let i = 0; i < target.length; i++) {
        target[i]! += slice[i]!;
      }
    }
    if (performance.now() < turnEnds) {
      continue;
    }
    await yieldToEventLoop();
    turnEnds = performance.now() + TURN_MS;
  }
}

function scaled(values: Float32Array, scale: number): Float32Array {
  const output = new Float32Array(values.length);
  for (let i = 0; i < output.length; i++) {
    output[i] = values[i]! * scale + 0;
  }
  return output;
}
