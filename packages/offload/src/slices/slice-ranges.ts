// The named ranges of a slice's stay on the device (those of fairscale's OffloadModel), on the main
// track of the device's trace. The range of a load is the time that the slice waits for it, so a
// slice that was read ahead has a range of no length.

import type { Device } from '@shardweave/tensor-core';

export type SliceRange =
  | 'forward_load'
  | 'no_grad_forward_pass'
  | 'forward_drop'
  | 'backward_load'
  | 'forward_pass_with_enable_grad'
  | 'backward_pass'
  | 'backward_drop';

/** Begins a range; the returned function ends it. */
export function beginRange(
  device: Device,
  name: SliceRange,
  layerNames: readonly string[],
): () => void {
  const { trace } = device;
  if (trace === undefined) {
    return () => {};
  }
  const startMs = performance.now();
  return () =>
    trace.add({
      name: `offload: ${name}`,
      track: 'main',
      startMs,
      endMs: performance.now(),
      args: { layers: layerNames.join(' ') },
    });
}
