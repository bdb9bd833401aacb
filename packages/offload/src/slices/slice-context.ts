// What the forward and the backward of an offloaded model share.

import { type FlatLoad, StageScheduler } from '@shardweave/nn/flat';
import type { Device } from '@shardweave/tensor-core';
import type { OffloadSlice } from './offload-slice.js';

/** A load for each flat parameter of a slice; undefined in a dry run. */
export type SliceLoads = readonly (FlatLoad | undefined)[];

export interface SliceContext {
  readonly device: Device;
  readonly scheduler: StageScheduler<OffloadSlice, SliceLoads>;
  /** Whether nothing is computed, because only the memory that a step takes is being measured. */
  isDry(): boolean;
  /** Called at the end of a slice's stay: what was in use counts for it. */
  note(slice: OffloadSlice): void;
}

/**
 * The named ranges of a slice's stay on the device (those of fairscale's OffloadModel). The range
 * of a load is the time that the slice waits for it, so a slice that was read ahead has a range of
 * no length.
 */
type SliceRange =
  | 'forward_load'
  | 'no_grad_forward_pass'
  | 'forward_drop'
  | 'backward_load'
  | 'forward_pass_with_enable_grad'
  | 'backward_pass'
  | 'backward_drop';

/**
 * Begins a range of the slice, on the main track of the device's trace; a dry run has none. The
 * returned function ends it.
 */
export function beginSliceRange(
  { device, isDry }: SliceContext,
  name: SliceRange,
  { layerNames }: OffloadSlice,
): () => void {
  const { trace } = device;
  if (trace === undefined || isDry()) {
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

/** Makes the scheduler that brings slices' parameters to the device and frees them. */
export function makeSliceScheduler(
  isDry: () => boolean,
  options: { readonly capBytes: number },
): StageScheduler<OffloadSlice, SliceLoads> {
  return new StageScheduler(
    {
      bytes: (slice) => slice.loadBytes,
      isPresent: ({ flats }) => flats.every((flat) => flat.full.isPresent),
      start: ({ flats }) => flats.map((flat) => (isDry() ? undefined : flat.full.startLoad())),
      finish: async ({ flats }, loads) => {
        for (const [i, flat] of flats.entries()) {
          const load = loads[i];
          if (load === undefined) {
            flat.full.fillDry();
          } else {
            await flat.full.finishLoad(load);
          }
        }
      },
      drop: ({ flats }) => {
        for (const flat of flats) {
          flat.full.drop();
        }
      },
    },
    options,
  );
}
