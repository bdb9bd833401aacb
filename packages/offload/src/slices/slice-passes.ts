// Runs a model's calls through slices: forward through one after another, and backward in reverse.
// What it measures, it runs dry: nothing is computed then, and memory is counted.

import { castFloats, HostBuffers, type StageScheduler } from '@shardweave/nn/flat';
import { type Device, tensorsIn } from '@shardweave/tensor-core';
import { ModelCall, storagesIn } from '../activations/model-call.js';
import type { OneCall } from '../one-call.js';
import type { ResolvedOffloadOptions } from '../options.js';
import { dryBackward, dryInputs } from './dry-step.js';
import type { LayerCalls } from './layer-calls.js';
import { cutRows, joinRows } from './micro-batches.js';
import type { Layer, OffloadSlice } from './offload-slice.js';
import type { OffloadedFlat } from './offloaded-flat.js';
import { SliceBackward } from './slice-backward.js';
import { makeSliceScheduler, type SliceContext, type SliceLoads } from './slice-context.js';
import { SliceForward } from './slice-forward.js';

/** The model whose slices run. */
export interface SlicedModel {
  readonly device: Device;
  readonly options: ResolvedOffloadOptions;
  readonly layers: readonly Layer[];
  readonly flats: readonly OffloadedFlat[];
  readonly layerCalls: LayerCalls;
}

export class SlicePasses {
  readonly backward: SliceBackward;
  /** Host memory for activations that wait for backward. */
  readonly parkingBuffers: HostBuffers;
  readonly #model: SlicedModel;
  readonly #forward: SliceForward;
  readonly #scheduler: StageScheduler<OffloadSlice, SliceLoads>;
  /** The calls whose activations may still be parked. */
  readonly #calls = new Set<ModelCall>();
  /** In a dry run, the most bytes in use during each slice's stay on the device. */
  #peaks: Map<OffloadSlice, number> | undefined;

  constructor(model: SlicedModel, calling: OneCall) {
    const { device, options, layerCalls } = model;
    const { loadAheadBytes, store } = options;
    this.#model = model;
    this.parkingBuffers = new HostBuffers({ isDry: store.isDry });
    const isDry = () => this.isDry;
    this.#scheduler = makeSliceScheduler(isDry, { capBytes: loadAheadBytes });
    const note = (slice: OffloadSlice) => this.#note(slice);
    const context: SliceContext = { device, scheduler: this.#scheduler, isDry, note };
    this.backward = new SliceBackward(context, {
      loadAheadBytes,
      requireIdle: () => calling.requireIdle('backward'),
      onEnd: () => {
        this.forgetFreed();
        this.parkingBuffers.sweep();
      },
      onFailure: () => this.#reset(),
    });
    this.#forward = new SliceForward(context, {
      nodes: calling.nodes,
      layerCalls,
      enterBackward: (slice, pass) => this.backward.enter(slice, pass),
    });
  }

  /** Whether nothing is computed, because only the memory that a step takes is being measured. */
  get isDry(): boolean {
    return this.#peaks !== undefined;
  }

  /** Runs a call's arguments through all slices. Resolves with what the last one returns. */
  async run(slices: readonly OffloadSlice[], args: readonly unknown[]): Promise<unknown> {
    const { device, options } = this.#model;
    const { computeDType, numMicrobatches } = options;
    const callers = new Set(tensorsIn(args).map(({ storage }) => storage));
    const inputs = computeDType === 'f32' ? args : castFloats(args, computeDType);
    const call = new ModelCall(callers, { hostBuffers: this.parkingBuffers, isDry: this.isDry });
    this.forgetFreed();
    this.#calls.add(call);
    let batches = cutRows(inputs, numMicrobatches);
    this.#scheduler.beginForward({ isRecording: device.isGradEnabled });
    try {
      for (const slice of slices) {
        batches = await this.#forward.run(slice, batches, call);
      }
      await this.#scheduler.settle();
      for (const { previous: output } of batches) {
        await call.parked.unpark(storagesIn(output));
      }
    } catch (error) {
      this.#reset();
      throw error;
    } finally {
      call.isRunning = false;
    }
    return joinRows(batches.map(({ previous: output }) => output));
  }

  /** The most bytes in use while each slice runs, forward and backward. */
  measure(slices: readonly OffloadSlice[], args: readonly unknown[]): Promise<number[]> {
    const { device } = this.#model;
    const peaks = new Map<OffloadSlice, number>();
    return this.backward.aside(async () => {
      this.#peaks = peaks;
      try {
        await device.dryRun(async () => {
          try {
            device.pool.resetPeak();
            await dryBackward(device, await this.run(slices, dryInputs(args)));
          } finally {
            this.#reset(); // needed after a failure and inside a real backward, too
          }
        });
        return slices.map((slice) => peaks.get(slice)!);
      } finally {
        this.#peaks = undefined;
      }
    });
  }

  /** Notes, in a dry run, how much was in use during the slice's stay. */
  #note(slice: OffloadSlice): void {
    if (this.#peaks === undefined) {
      return;
    }
    const { pool } = this.#model.device;
    this.#peaks.set(slice, Math.max(this.#peaks.get(slice) ?? 0, pool.peakInUseBytes));
    pool.resetPeak();
  }

  /** Gives back the host memory of calls whose graphs were freed, with or without a backward. */
  forgetFreed(): void {
    for (const call of this.#calls) {
      call.parked.forgetFreed();
      if (call.parked.isEmpty && !call.isRunning) {
        this.#calls.delete(call);
      }
    }
  }

  /** Forgets the parameters that are on their way to the device. */
  abandonLoads(): void {
    this.#scheduler.reset();
  }

  /**
   * Returns to rest after a failure. The gradients of this backward that the store has are
   * incomplete.
   */
  #reset(): void {
    this.backward.reset();
    this.#scheduler.reset();
    for (const flat of this.#model.flats) {
      flat.full.abandonLoads();
      flat.gradient.reset();
      flat.full.drop();
    }
  }
}
