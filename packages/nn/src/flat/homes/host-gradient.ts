// Sums of reduced gradients on the host, with the bits that the device's kernels give.

import { viewAs, yieldToEventLoop } from '@shardweave/dtypes';

/** Elements between looks at the clock: well below a millisecond. */
const SLICE_ELEMENTS = 64 * 1024;
/** As dtypes' Reducer: sockets and timers get a turn. */
const TURN_MS = 8;

export interface AddOptions {
  /** A product rounded to f32, with positive zeros; 'none': the values as they are. */
  readonly scale: number | 'none';
  /** `total` holds nothing yet. */
  readonly isFirst: boolean;
}

/** total (+)= values * scale; f32 bytes of equal length. */
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
