// Suggests which modules of a traced model should begin a checkpointed segment.

import { MemoryTrackerConfigError } from './errors.js';
import { firstForward, type MemoryTrace } from './memory-trace.js';
import { placeCheckpoints } from './place-checkpoints.js';

/** Where a model is best cut into checkpointed segments; sizes are in bytes. */
export interface CheckpointSuggestion {
  /** The activations of the largest segment, which its second forward makes. */
  readonly maxSegmentBytes: number;
  /** Paths of the modules that begin the segments after the first, in the order of the forward. */
  readonly modules: readonly string[];
}

/**
 * Divides the modules of the trace's first pass into `numCheckpoints` + 1 segments whose largest
 * sum of activations is as small as possible. It is meant for models that run their modules in a
 * row.
 * @param options.skipFirst how many modules at the front take no part, such as embeddings. Default
 * 0.
 * @throws {MemoryTrackerConfigError} for numbers that are not whole and at least 0, and for a trace
 * without a forward
 */
export function suggestCheckpoints(
  trace: MemoryTrace,
  numCheckpoints: number,
  options: { readonly skipFirst?: number } = {},
): CheckpointSuggestion {
  const { skipFirst = 0 } = options;
  if (!Number.isInteger(skipFirst) || skipFirst < 0) {
    throw new MemoryTrackerConfigError(
      `suggestCheckpoints: expected a whole skipFirst of at least 0, got ${skipFirst}.`,
    );
  }
  const all = firstForward(trace);
  if (all.length === 0) {
    throw new MemoryTrackerConfigError(
      'suggestCheckpoints: expected a trace with a forward, got none. Run the model while the tracker is on.',
    );
  }
  const samples = all.slice(skipFirst);
  const sizes = samples.map(({ activationBytes }) => activationBytes);
  const { maxRun, splits } = placeCheckpoints(sizes, numCheckpoints);
  return { maxSegmentBytes: maxRun, modules: splits.map((index) => samples[index]!.name) };
}
