// Decides which layers make one slice. Pure arithmetic.

/**
 * Cuts layers into at most `numSlices` runs of about equal size: a run ends where the next layer
 * would take it past the average. That is fairscale's rule, except that runs are never empty here.
 * @param sizes the number of parameters of each layer; at least one layer
 * @returns the number of layers of each run
 * @example
 * ```ts
 * import { splitLayers } from '@shardweave/offload';
 *
 * console.log(splitLayers([4, 1, 1, 1, 1], 2)); // logs [ 1, 4 ]
 * ```
 */
export function splitLayers(sizes: readonly number[], numSlices: number): number[] {
  const target = Math.floor(sizes.reduce((sum, size) => sum + size, 0) / numSlices);
  const runs: number[] = [];
  let numLayers = 0;
  let total = 0;
  for (const size of sizes) {
    const isFull = numLayers > 0 && total + size > target && runs.length < numSlices - 1;
    if (isFull) {
      runs.push(numLayers);
      numLayers = 0;
      total = 0;
    }
    numLayers += 1;
    total += size;
  }
  runs.push(numLayers);
  return runs;
}

/**
 * The number of rows of each micro-batch: ceil(rows / numMicrobatches), the rest in the last one.
 * 10 rows in 4: 3, 3, 3, 1; 5 rows in 4: 2, 2, 1, which is one micro-batch less.
 */
export function splitRows(rows: number, numMicrobatches: number): number[] {
  const size = Math.max(1, Math.ceil(rows / numMicrobatches));
  const counts: number[] = [];
  for (let left = rows; left > 0; left -= size) {
    counts.push(Math.min(size, left));
  }
  return counts.length === 0 ? [0] : counts;
}
