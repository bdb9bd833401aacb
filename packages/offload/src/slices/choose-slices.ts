// Finds the smallest number of slices that fits a device's budget, by dry runs of a step, whose
// memory is measured.

import { LEAST_PART_BYTES } from '@shardweave/nn/flat';
import { sizeClass } from '@shardweave/tensor-core';
import { OffloadBudgetError } from '../errors.js';
import { splitLayers } from './split-layers.js';

export interface SliceSearch {
  /** The number of parameters of each layer. */
  readonly layerSizes: readonly number[];
  readonly layerNames: readonly string[];
  /** The number of elements of each flat parameter that the optimizer steps. */
  readonly flatElements: readonly number[];
  readonly budgetBytes: number;
  /** The bytes that are on the device already and stay. */
  readonly inUseBytes: number;
  readonly isTraining: boolean;
  /** The most bytes in use while each slice runs, where `runs` has the number of layers of each. */
  measure(runs: readonly number[]): Promise<readonly number[]>;
}

/**
 * A parameter, its gradient and Adam's two moments. An optimizer with more tensors may meet the
 * pool's limit.
 */
const NUM_STEPPED = 4;

export interface ChosenSlices {
  /** The number of layers of each slice. */
  readonly runs: readonly number[];
  /** The bytes that they take beside what was in use. */
  readonly neededBytes: number;
}

/**
 * @throws {OffloadBudgetError} naming the smallest budget that works, and the layer that needs it
 */
export async function chooseSlices(search: SliceSearch): Promise<ChosenSlices> {
  const { layerSizes, layerNames, budgetBytes, inUseBytes, isTraining } = search;
  const step = isTraining ? Math.max(0, ...search.flatElements.map(stepNeed)) : 0;
  let best = { requiredBytes: Number.POSITIVE_INFINITY, layer: 0 };
  let last = '';
  for (let numSlices = 1; numSlices <= layerSizes.length; numSlices++) {
    const runs = splitLayers(layerSizes, numSlices);
    if (runs.join() === last) {
      continue;
    }
    last = runs.join();
    const peaks = await search.measure(runs);
    const peak = Math.max(...peaks);
    const neededBytes = Math.max(peak, step);
    const requiredBytes = inUseBytes + neededBytes;
    if (requiredBytes <= budgetBytes) {
      return { runs, neededBytes };
    }
    if (requiredBytes < best.requiredBytes) {
      const layer =
        step > peak
          ? layerSizes.indexOf(Math.max(...layerSizes))
          : largestLayer(layerSizes, runs, peaks.indexOf(peak));
      best = { requiredBytes, layer };
    }
  }
  const moduleName = layerNames[best.layer]!;
  throw new OffloadBudgetError(
    `offload: expected a budget of at least ${best.requiredBytes} bytes for these inputs, got ${budgetBytes}; layer '${moduleName}' needs it. Raise deviceBudgetBytes, cut the batch into more micro-batches, or split that layer.`,
    { budgetBytes, requiredBytes: best.requiredBytes, moduleName },
  );
}

/**
 * The bytes that a step of one flat parameter needs: it is stepped in parts where the device has no
 * room for the whole.
 */
function stepNeed(elementCount: number): number {
  return NUM_STEPPED * sizeClass(Math.min(elementCount * 4, LEAST_PART_BYTES));
}

/** The layer with the most parameters in one run. */
function largestLayer(sizes: readonly number[], runs: readonly number[], run: number): number {
  const start = runs.slice(0, run).reduce((sum, count) => sum + count, 0);
  const inside = sizes.slice(start, start + runs[run]!);
  return start + inside.indexOf(Math.max(...inside));
}
