// Trains a model that is larger than its device: layers rest in host memory or on disk, and each
// slice of them is on the device only while it runs forward or backward (fairscale's OffloadModel).
// Saved activations wait on the host between the two. The optimizer, made on parameters(), steps
// the parameters where they rest, one layer at a time.

import { isModule, Module, type Sequential } from '@shardweave/nn';
import {
  castFloats,
  HELD,
  type HeldBy,
  HostBuffers,
  type StageScheduler,
  StoredModel,
  storeUseOf,
} from '@shardweave/nn/flat';
import { tensorsIn } from '@shardweave/tensor-core';
import { ModelCall, storagesIn } from './activations/model-call.js';
import { OffloadConfigError } from './errors.js';
import { HELD_BY_OFFLOAD } from './held-at-rest.js';
import { type Layer, layersOf, makeFlats } from './offload-layers.js';
import { OneCall } from './one-call.js';
import { type OffloadOptions, type ResolvedOffloadOptions, resolveOptions } from './options.js';
import { chooseSlices } from './slices/choose-slices.js';
import { dryBackward, dryInputs } from './slices/dry-step.js';
import { LayerCalls } from './slices/layer-calls.js';
import { cutRows, joinRows } from './slices/micro-batches.js';
import { OffloadSlice } from './slices/offload-slice.js';
import type { OffloadedFlat } from './slices/offloaded-flat.js';
import { SliceBackward } from './slices/slice-backward.js';
import { makeSliceScheduler, type SliceLoads } from './slices/slice-context.js';
import { SliceForward } from './slices/slice-forward.js';
import { SlicePlans } from './slices/slice-plans.js';
import { splitLayers } from './slices/split-layers.js';

/** The host memory that an offloaded model takes, in bytes. */
export interface OffloadHostMemory {
  /** Bytes on their way between store and device: parameters, gradients and optimizer state. */
  readonly stagingBytes: number;
  /** The most staging bytes at once since the model was made. */
  readonly peakStagingBytes: number;
  readonly parkedBytes: number;
  /** The bytes of all host buffers, including those that wait for their next use. */
  readonly heldBytes: number;
  /**
   * The number of host buffers made since the model was; a step that is like the one before makes
   * none.
   */
  readonly numBuffersMade: number;
}

/**
 * Wraps layers whose parameters rest in host memory or on disk. Each slice of the layers is on the
 * device only while it runs forward or backward, and the activations that backward needs wait on
 * the host (fairscale's OffloadModel). The optimizer is made on `parameters()`, and steps them
 * where they rest.
 * @example
 * ```ts
 * import { AdamW, Gpt2 } from '@shardweave/nn';
 * import { OffloadModel } from '@shardweave/offload';
 * import { Device, mean } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 2, n_head: 2 };
 * const gpt = new Gpt2(device, config, { deferInit: true }); // never whole on the device
 * const model = new OffloadModel(gpt, { numSlices: 2 });
 * const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
 * await device.scope(async () => {
 *   const ids = device.tensor(Int32Array.of(1, 2, 3, 4), [1, 4]);
 *   await mean(await model.call(ids, { targets: ids })).backward();
 * });
 * await optimizer.step();
 * optimizer.zeroGrad();
 * console.log(model.slices.length); // logs 2
 * model.dispose();
 * await backend.dispose();
 * ```
 */
// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class OffloadModel<Args extends readonly any[] = any, Output = any> extends Module<
  Args,
  Output
> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  /** @internal */
  readonly flats: readonly OffloadedFlat[];
  readonly #options: ResolvedOffloadOptions;
  readonly #layers: readonly Layer[];
  readonly #layerCalls: LayerCalls;
  readonly #scheduler: StageScheduler<OffloadSlice, SliceLoads>;
  readonly #forward: SliceForward;
  readonly #backward: SliceBackward;
  readonly #stagingBuffers: HostBuffers;
  readonly #parkingBuffers: HostBuffers;
  readonly #plans = new SlicePlans();
  /** The calls whose activations may still be parked. */
  readonly #calls = new Set<ModelCall>();
  #slices: readonly OffloadSlice[];
  readonly #stored: StoredModel;
  readonly #leaveStore: () => void;
  #isStored = false;
  #endBudget = () => {};
  #isDry = false;
  readonly #calling: OneCall;
  /** In a dry run, the most bytes in use during each slice's stay on the device. */
  #peaks: Map<OffloadSlice, number> | undefined;

  /**
   * @param model a Sequential, which is cut into slices balanced by parameters, or a list of slices
   * @throws {OffloadConfigError} for anything else, for options that are unknown, out of range or
   * in contradiction, and for parameters that cannot be moved to the store
   * @throws {OptimizerError} where the store has a model of this name already
   */
  constructor(model: Sequential<Args, Output> | readonly Module[], options: OffloadOptions = {}) {
    const modules = layersOf(model);
    super(modules[0]!.device);
    this.#options = resolveOptions(options);
    for (const [path, module] of modules.flatMap((layer) => layer.namedModules())) {
      if (!(module instanceof OffloadModel)) {
        continue;
      }
      throw new OffloadConfigError(
        `offload: expected modules without an OffloadModel, got one at '${path}'. One around all slices is enough.`,
      );
    }
    const { loadAheadBytes, store } = this.#options;
    this.#stagingBuffers = new HostBuffers({ isDry: store.isDry });
    this.#parkingBuffers = new HostBuffers({ isDry: store.isDry });
    if (isModule(model)) {
      this.child('module', model);
    } else {
      modules.forEach((module, i) => void this.child(String(i), module));
    }
    this.#layers = modules.map((module, i) => ({ name: String(i), module, flats: [] }));
    this.#layerCalls = new LayerCalls(model, modules.length);
    const device = this.device;
    const hostBuffers = this.#stagingBuffers;
    const use = storeUseOf(this.#options.store);
    const flats: OffloadedFlat[] = [];
    this.#stored = new StoredModel({
      use,
      name: this.#options.name,
      device,
      resume: this.#options.resume,
      flats,
      buffers: () => this.namedBuffers(),
      numSteps: () => this.numSteps,
    });
    const flatOptions = { ...this.#options, device, hostBuffers, model: this.#stored };
    flats.push(...makeFlats(this.#layers, this.namedParameters(), flatOptions));
    this.flats = flats;
    this.#leaveStore = use.claim([this.#options.name, ...flats.map(({ name }) => name)], device);
    const resting = [...new Set(this.parameters().map(({ piece }) => piece!.flat))];
    this.#calling = new OneCall(device, resting);
    this.#slices = this.#cut(
      isModule(model)
        ? splitLayers(this.#layerSizes(), Math.min(this.#options.numSlices, modules.length))
        : modules.map(() => 1),
    );
    const isDry = () => this.#isDry;
    const scheduler = makeSliceScheduler(isDry, { capBytes: loadAheadBytes });
    this.#scheduler = scheduler;
    const context = { device, scheduler, isDry, note: (slice: OffloadSlice) => this.#note(slice) };
    this.#backward = new SliceBackward({
      ...context,
      loadAheadBytes,
      requireIdle: () => this.#calling.requireIdle('backward'),
      onEnd: () => {
        this.#forgetFreed();
        this.#parkingBuffers.sweep();
      },
      onFailure: () => this.#reset(),
    });
    this.#forward = new SliceForward({
      ...context,
      nodes: this.#calling.nodes,
      layerCalls: this.#layerCalls,
      enterBackward: (slice, pass) => this.#backward.enter(slice, pass),
    });
  }

  /**
   * How the functions of nn reach what rests in its store.
   * @internal
   */
  get [HELD](): HeldBy {
    return HELD_BY_OFFLOAD;
  }

  override childPrefix(name: string): string {
    return name === 'module' ? '' : name;
  }

  /** The slices in use, as the names of their layers. */
  get slices(): readonly (readonly string[])[] {
    return this.#slices.map(({ layerNames }) => layerNames);
  }

  /**
   * The number of optimizer steps that its parameters have seen, the most of any. A resumed model
   * counts the steps of earlier processes once it is in the store, which moveToStore or the first
   * call sees to.
   */
  get numSteps(): number {
    return Math.max(0, ...this.flats.map(({ home }) => home.states.step ?? 0));
  }

  /** What lies in host buffers now: bytes on their way, and activations that wait for backward. */
  hostMemory(): OffloadHostMemory {
    this.#forgetFreed();
    const [staging, parking] = [this.#stagingBuffers, this.#parkingBuffers];
    return {
      stagingBytes: staging.takenBytes,
      peakStagingBytes: staging.peakTakenBytes,
      parkedBytes: parking.takenBytes,
      heldBytes: staging.heldBytes + parking.heldBytes,
      numBuffersMade: staging.numMade + parking.numMade,
    };
  }

  // ---- forward ---------------------------------------------------------------------------------

  /** @throws {OffloadBusyError} while another call, a backward or a step has not ended */
  override call(...args: Args): Promise<Output> {
    return this.#calling.alone('call', 'forward', () => super.call(...args));
  }

  override async forward(...args: Args): Promise<Output> {
    await this.#moveToStore();
    this.#backward.leave(); // a forward inside a backward: it is being run again
    await this.#chooseSlices(args);
    return (await this.#run(args)) as Output;
  }

  /** Moves all parameters to the store, once; the first call does so too. */
  moveToStore(): Promise<void> {
    return this.whileAtRest('moveToStore', async () => {});
  }

  /**
   * Commits the store, so that a later process finds what it has now. Optimizer steps do so too.
   */
  commit(): Promise<void> {
    return this.#calling.alone('commit', 'commit', () => storeUseOf(this.#options.store).commit());
  }

  /**
   * Writes what the store had no room for, and commits. A step that failed for lack of room has
   * been taken nevertheless.
   */
  flush(): Promise<void> {
    return this.whileAtRest('flush', async () => {
      for (const { home } of this.flats) {
        await home.flush();
      }
      await storeUseOf(this.#options.store).commit();
    });
  }

  /**
   * Runs `body` while the parameters rest in the store.
   * @param call the name of the call in messages
   * @throws {OffloadBusyError} while another call, a backward or a step has not ended
   */
  whileAtRest<T>(call: string, body: () => Promise<T>): Promise<T> {
    return this.#calling.alone(call, call, async () => {
      await this.#moveToStore();
      return body();
    });
  }

  async #moveToStore(): Promise<void> {
    if (this.#isStored) {
      return;
    }
    await this.#stored.open(); // needed even where no flat parameter does it
    for (const flat of this.flats) {
      await flat.moveToStore();
    }
    await storeUseOf(this.#options.store).commit();
    this.#isStored = true;
    const { deviceBudgetBytes } = this.#options;
    if (deviceBudgetBytes !== undefined) {
      this.#endBudget = this.device.pool.limit(deviceBudgetBytes);
    }
  }

  async #run(args: readonly unknown[]): Promise<unknown> {
    const { device } = this;
    const { computeDType, numMicrobatches } = this.#options;
    const callers = new Set(tensorsIn(args).map(({ storage }) => storage));
    const inputs = computeDType === 'f32' ? args : castFloats(args, computeDType);
    const call = new ModelCall(callers, {
      hostBuffers: this.#parkingBuffers,
      isDry: this.#isDry,
    });
    this.#forgetFreed();
    this.#calls.add(call);
    let batches = cutRows(inputs, numMicrobatches);
    this.#scheduler.beginForward({ isRecording: device.isGradEnabled });
    try {
      for (const slice of this.#slices) {
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

  /** Gives back the host memory of calls whose graphs were freed, with or without a backward. */
  #forgetFreed(): void {
    for (const call of this.#calls) {
      call.parked.forgetFreed();
      if (call.parked.isEmpty && !call.isRunning) {
        this.#calls.delete(call);
      }
    }
  }

  /**
   * Returns to rest after a failure. The gradients of this backward that the store has are
   * incomplete.
   */
  #reset(): void {
    this.#backward.reset();
    this.#scheduler.reset();
    for (const flat of this.flats) {
      flat.full.abandonLoads();
      flat.gradient.reset();
      flat.full.drop();
    }
  }

  // ---- slices ----------------------------------------------------------------------------------

  /** Chooses slices for the budget, where no earlier choice covers these inputs. */
  async #chooseSlices(args: Args): Promise<void> {
    if (this.#options.deviceBudgetBytes === undefined || this.#isDry) {
      return;
    }
    const { device } = this;
    const { inUseBytes, limitBytes } = device.pool;
    const shapes = tensorsIn(args).map(({ shape }) => shape);
    const call = { shapes, isTraining: device.isGradEnabled };
    let plan = this.#plans.find({ ...call, roomBytes: limitBytes - inUseBytes });
    if (plan === undefined) {
      const { runs, neededBytes } = await chooseSlices({
        layerSizes: this.#layerSizes(),
        layerNames: this.#layers.map(({ name }) => name),
        flatElements: this.flats.map(({ flat }) => flat.size),
        budgetBytes: limitBytes,
        inUseBytes,
        isTraining: call.isTraining,
        measure: (candidate) => this.#measure(candidate, args),
      });
      plan = { ...call, neededBytes, slices: this.#cut(runs) };
      this.#plans.add(plan);
    }
    this.#slices = plan.slices;
  }

  /** The most bytes in use while each slice runs, forward and backward. */
  async #measure(runs: readonly number[], args: Args): Promise<number[]> {
    const slices = this.#slices;
    const candidate = this.#cut(runs);
    const peaks = new Map<OffloadSlice, number>();
    return this.#backward.aside(async () => {
      this.#slices = candidate;
      this.#peaks = peaks;
      this.#isDry = true;
      try {
        await this.device.dryRun(async () => {
          try {
            this.device.pool.resetPeak();
            await dryBackward(this.device, await this.#run(dryInputs(args)));
          } finally {
            this.#reset(); // needed after a failure and inside a real backward, too
          }
        });
        return candidate.map((slice) => peaks.get(slice)!);
      } finally {
        this.#isDry = false;
        this.#peaks = undefined;
        this.#slices = slices;
      }
    });
  }

  /** Notes, in a dry run, how much was in use during the slice's stay. */
  #note(slice: OffloadSlice): void {
    if (this.#peaks === undefined) {
      return;
    }
    const { pool } = this.device;
    this.#peaks.set(slice, Math.max(this.#peaks.get(slice) ?? 0, pool.peakInUseBytes));
    pool.resetPeak();
  }

  #cut(runs: readonly number[]): OffloadSlice[] {
    let start = 0;
    return runs.map((count) => {
      const first = start;
      start += count;
      const layers = this.#layers.slice(first, start);
      const flats = [...new Set(layers.flatMap((layer) => layer.flats))];
      const { checkpointActivation } = this.#options;
      const around = (slice: OffloadSlice, run: () => Promise<unknown>) =>
        this.#backward.around(slice, run);
      return new OffloadSlice(this.device, layers, {
        start: first,
        calls: this.#layerCalls,
        flats,
        checkpointActivation,
        around,
      });
    });
  }

  #layerSizes(): number[] {
    return this.#layers.map(({ module }) =>
      module.parameters().reduce((sum, { size }) => sum + size, 0),
    );
  }

  protected override releaseOwned(): void {
    this.#endBudget();
    this.#scheduler.reset();
    for (const flat of this.flats) {
      flat.dispose();
    }
    this.#stored.close();
    this.#leaveStore();
  }
}
