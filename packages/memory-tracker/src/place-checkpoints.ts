// Cuts a row of layers so that the largest run between cuts is as small as possible. Pure
// arithmetic.

import { MemoryTrackerConfigError } from './errors.js';

/** A partition of sizes into runs. */
export interface CheckpointPlacement {
  /** The sum of the largest run. */
  readonly maxRun: number;
  /** The first index of every run but the first, ascending. */
  readonly splits: readonly number[];
}

/** The best partition of the sizes from some index on. */
interface Suffix {
  readonly maxRun: number;
  /** The index where its second run begins; the number of sizes where there is one run. */
  readonly split: number;
}

/**
 * Cuts `sizes` into `numCheckpoints` + 1 runs, or into runs of one where there are fewer sizes, so
 * that the largest sum is as small as possible. The result is exact: each suffix is solved once for
 * each number of cuts, in O(n^2) steps per cut. Of equally good partitions it is the one with the
 * shortest first run, then the shortest second run, and so on.
 * @throws {MemoryTrackerConfigError} for sizes that are negative or not finite, and for a number of
 * checkpoints that is not whole
 * @example
 * ```ts
 * import { placeCheckpoints } from '@shardweave/memory-tracker';
 *
 * console.log(placeCheckpoints([5, 1, 1, 4, 1], 1)); // logs { maxRun: 6, splits: [ 2 ] }
 * ```
 */
export function placeCheckpoints(
  sizes: readonly number[],
  numCheckpoints: number,
): CheckpointPlacement {
  check(sizes, numCheckpoints);
  const numSplits = Math.min(numCheckpoints, Math.max(0, sizes.length - 1));
  const solve = memoisedSolver(sizes);
  const splits: number[] = [];
  for (let left = numSplits, start = 0; left > 0; left--) {
    start = solve(start, left).split;
    splits.push(start);
  }
  return { maxRun: solve(0, numSplits).maxRun, splits };
}

/** Solves the sizes from `start` on with `numSplits` cuts; there are more sizes than cuts. */
function memoisedSolver(sizes: readonly number[]): (start: number, numSplits: number) => Suffix {
  const known: Suffix[][] = [];
  return function solve(start: number, numSplits: number): Suffix {
    known[numSplits] ??= [];
    const row = known[numSplits];
    row[start] ??= numSplits === 0 ? oneRun(sizes, start) : bestCut(sizes, start, numSplits, solve);
    return row[start];
  };
}

function oneRun(sizes: readonly number[], start: number): Suffix {
  return { maxRun: sizes.slice(start).reduce((sum, size) => sum + size, 0), split: sizes.length };
}

function bestCut(
  sizes: readonly number[],
  start: number,
  numSplits: number,
  solve: (start: number, numSplits: number) => Suffix,
): Suffix {
  let best: Suffix | undefined;
  let run = 0;
  for (let split = start + 1; split <= sizes.length - numSplits; split++) {
    run += sizes[split - 1]!;
    if (best !== undefined && run >= best.maxRun) {
      break; // later cuts only make it longer
    }
    const maxRun = Math.max(run, solve(split, numSplits - 1).maxRun);
    if (best === undefined || maxRun < best.maxRun) {
      best = { maxRun, split };
    }
  }
  return best!;
}

function check(sizes: readonly number[], numCheckpoints: number): void {
  const stray = sizes.findIndex((size) => !(size >= 0 && Number.isFinite(size)));
  if (stray >= 0) {
    throw new MemoryTrackerConfigError(
      `placeCheckpoints: expected sizes of at least 0, got ${sizes[stray]} (index ${stray}).`,
    );
  }
  if (!Number.isInteger(numCheckpoints) || numCheckpoints < 0) {
    throw new MemoryTrackerConfigError(
      `placeCheckpoints: expected a whole number of checkpoints of at least 0, got ${numCheckpoints}.`,
    );
  }
}
