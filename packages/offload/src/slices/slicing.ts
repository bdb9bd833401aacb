// How a model's layers are cut into slices: as it was asked for, or so that each slice fits a
// budget of the device.

import { tensorsIn } from '@shardweave/tensor-core';
import { chooseSlices } from './choose-slices.js';
import { OffloadSlice } from './offload-slice.js';
import type { SlicedModel, SlicePasses } from './slice-passes.js';
import { SlicePlans } from './slice-plans.js';
import { splitLayers } from './split-layers.js';

export class Slicing {
  readonly #model: SlicedModel;
  readonly #passes: SlicePasses;
  readonly #plans = new SlicePlans();
  #slices: readonly OffloadSlice[];

  /**
   * @param given the number of layers in each slice; undefined where the options say how many
   * slices there are
   */
  constructor(model: SlicedModel, passes: SlicePasses, given: readonly number[] | undefined) {
    this.#model = model;
    this.#passes = passes;
    const numSlices = Math.min(model.options.numSlices, model.layers.length);
    this.#slices = this.#cut(given ?? splitLayers(this.#layerSizes(), numSlices));
  }

  /** The slices in use. */
  get slices(): readonly OffloadSlice[] {
    return this.#slices;
  }

  /** The slices for a call. They are chosen for the budget, where no earlier choice covers it. */
  async choose(args: readonly unknown[]): Promise<readonly OffloadSlice[]> {
    const { device, options, layers, flats } = this.#model;
    if (options.deviceBudgetBytes === undefined || this.#passes.isDry) {
      return this.#slices;
    }
    const { inUseBytes, limitBytes } = device.pool;
    const shapes = tensorsIn(args).map(({ shape }) => shape);
    const call = { shapes, isTraining: device.isGradEnabled };
    let plan = this.#plans.find({ ...call, roomBytes: limitBytes - inUseBytes });
    if (plan === undefined) {
      const { runs, neededBytes } = await chooseSlices({
        layerSizes: this.#layerSizes(),
        layerNames: layers.map(({ name }) => name),
        flatElements: flats.map(({ flat }) => flat.size),
        budgetBytes: limitBytes,
        inUseBytes,
        isTraining: call.isTraining,
        measure: (candidate) => this.#passes.measure(this.#cut(candidate), args),
      });
      plan = { ...call, neededBytes, slices: this.#cut(runs) };
      this.#plans.add(plan);
    }
    this.#slices = plan.slices;
    return this.#slices;
  }

  /** @param runs the number of layers in each slice */
  #cut(runs: readonly number[]): OffloadSlice[] {
    const { device, options, layers, layerCalls } = this.#model;
    let start = 0;
    return runs.map((count) => {
      const first = start;
      start += count;
      return new OffloadSlice({
        device,
        layers: layers.slice(first, start),
        start: first,
        calls: layerCalls,
        checkpointActivation: options.checkpointActivation,
        around: (slice, run) => this.#passes.backward.around(slice, run),
      });
    });
  }

  #layerSizes(): number[] {
    return this.#model.layers.map(({ module }) =>
      module.parameters().reduce((sum, { size }) => sum + size, 0),
    );
  }
}
