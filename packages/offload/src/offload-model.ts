// Trains a model larger than its device: layers rest in host memory or on disk, and each slice of
// them is on the device while it runs, forward and backward (fairscale's OffloadModel). Saved
// activations wait on the host in between. The optimizer, made on parameters(), steps them where they
// rest, one layer at a time.

import { isModule, Module, mapTensors, type Sequential } from '@shardweave/nn';
import {
  type FlatLoad,
  flatHomeOf,
  HostBuffers,
  StageScheduler,
  StoredModel,
  storeUseOf,
} from '@shardweave/nn/flat';
import {
  cast,
  isFloat,
  type Pass,
  type Storage,
  type Tensor,
  tensorsIn,
} from '@shardweave/tensor-core';
import { chooseSlices } from './choose-slices.js';
import { dryBackward, dryInputs } from './dry-step.js';
import { OffloadBusyError, OffloadConfigError } from './errors.js';
import { cutRows, joinRows, type MicroBatch } from './micro-batches.js';
import { endHolds, ModelCall, storagesIn } from './model-call.js';
import { type Layer, layersOf, makeFlats } from './offload-layers.js';
import { OffloadSlice } from './offload-slice.js';
import type { OffloadedFlat } from './offloaded-flat.js';
import { type OffloadOptions, type ResolvedOffloadOptions, resolveOptions } from './options.js';
import { SlicePlans } from './slice-plans.js';
import { beginRange, type SliceRange } from './slice-ranges.js';
import { splitLayers } from './split-layers.js';

export interface OffloadHostMemory {
  /** On their way between store and device: parameters, gradients, optimizer state. */
  readonly stagingBytes: number;
  /** The most of them at once since the model was made. */
  readonly peakStagingBytes: number;
  readonly parkedBytes: number;
  /** Host buffers made since then: a step like one before it makes none. */
  readonly numBuffersMade: number;
}

// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class OffloadModel<Args extends readonly any[] = any, Output = any> extends Module<
  Args,
  Output
> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  readonly flats: readonly OffloadedFlat[];
  readonly #options: ResolvedOffloadOptions;
  readonly #layers: readonly Layer[];
  readonly #scheduler: StageScheduler<OffloadSlice, readonly (FlatLoad | undefined)[]>;
  /** Gradients on their way to the store, and the bytes that they take on the host. */
  readonly #stores = new Map<Promise<void>, number>();
  readonly #stagingBuffers = new HostBuffers();
  readonly #parkingBuffers = new HostBuffers();
  readonly #plans = new SlicePlans();
  /** Those whose activations may still be parked. */
  readonly #calls = new Set<ModelCall>();
  #slices: readonly OffloadSlice[];
  readonly #stored: StoredModel;
  #isStored = false;
  #endBudget = () => {};
  #isDry = false;
  #current: OffloadSlice | undefined;
  #pass: Pass | undefined;
  /** Ends the trace's range of the current slice. */
  #endBackwardPass: () => void = () => {};
  /** Flats with a home that its parameters are in, those of sharded modules inside too. */
  readonly #resting: readonly Tensor[];
  /** What made its slices' outputs; see Note [one call at a time]. */
  readonly #nodes = new WeakSet<object>();
  /** The most bytes in use while each slice was, in a dry run. */
  #peaks: Map<OffloadSlice, number> | undefined;

  /**
   * @param model a Sequential, cut into slices balanced by parameters, or the slices themselves
   * @throws {OffloadConfigError} for anything else, options that are unknown, out of range or in
   * contradiction, and parameters that are not f32 or belong to another flat tensor
   */
  constructor(model: Sequential<Args, Output> | readonly Module[], options: OffloadOptions = {}) {
    const modules = layersOf(model);
    super(modules[0]!.device);
    this.#options = resolveOptions(options);
    for (const [path, module] of modules.flatMap((one) => one.namedModules())) {
      if (!(module instanceof OffloadModel)) {
        continue;
      }
      throw new OffloadConfigError(
        `offload: expected modules without an OffloadModel, got one at '${path}'. One around all slices is enough.`,
      );
    }
    const { loadAheadBytes } = this.#options;
    if (isModule(model)) {
      this.child('module', model);
    } else {
      modules.forEach((module, i) => void this.child(String(i), module));
    }
    this.#layers = modules.map((module, i) => ({ name: String(i), module, flats: [] }));
    const device = this.device;
    const hostBuffers = this.#stagingBuffers;
    this.#stored = new StoredModel({
      use: storeUseOf(this.#options.store),
      name: this.#options.name,
      device,
      resume: this.#options.resume,
      lines: () => this.#describe(),
      buffers: () => this.namedBuffers(),
      numSteps: () => this.numSteps,
    });
    const flatOptions = { ...this.#options, device, hostBuffers, model: this.#stored };
    this.flats = makeFlats(this.#layers, this.namedParameters(), flatOptions);
    this.#resting = [...new Set(this.parameters().map(({ piece }) => piece!.flat))];
    this.#slices = this.#cut(
      isModule(model)
        ? splitLayers(this.#layerSizes(), Math.min(this.#options.numSlices, modules.length))
        : modules.map(() => 1),
    );
    this.#scheduler = new StageScheduler(
      {
        bytes: (slice) => slice.loadBytes,
        isPresent: ({ flats }) => flats.every((flat) => flat.isPresent),
        start: ({ flats }) => flats.map((flat) => this.#startLoad(flat)),
        finish: async ({ flats }, tickets) => {
          for (const [i, flat] of flats.entries()) {
            await this.#finishLoad(flat, tickets[i]);
          }
        },
        drop: ({ flats }) => {
          for (const flat of flats) {
            flat.drop();
          }
        },
      },
      { capBytes: loadAheadBytes },
    );
  }

  override childPrefix(name: string): string {
    return name === 'module' ? '' : name;
  }

  /** Slices in use, as the names of their layers. */
  get slices(): readonly (readonly string[])[] {
    return this.#slices.map(({ layerNames }) => layerNames);
  }

  /**
   * Optimizer steps that its parameters have seen, the most of any. In a resumed model those of earlier
   * processes count from moveToStore on, which the first call does too.
   */
  get numSteps(): number {
    return Math.max(0, ...this.flats.map(({ home }) => home.restingStep ?? 0));
  }

  /** What lies in host buffers now: bytes on their way, and activations that wait for backward. */
  hostMemory(): OffloadHostMemory {
    this.#forgetFreed();
    const [staging, parking] = [this.#stagingBuffers, this.#parkingBuffers];
    return {
      stagingBytes: staging.takenBytes,
      peakStagingBytes: staging.peakTakenBytes,
      parkedBytes: parking.takenBytes,
      numBuffersMade: staging.numMade + parking.numMade,
    };
  }

  // ---- forward ---------------------------------------------------------------------------------

  /** @throws {OffloadBusyError} beside another call, a backward or a step that has not ended */
  override call(...args: Args): Promise<Output> {
    return this.#alone('call', 'forward', () => super.call(...args));
  }

  override async forward(...args: Args): Promise<Output> {
    await this.#moveToStore();
    this.#leaveBackward(); // a forward inside a backward: it is being run again
    await this.#chooseSlices(args);
    return (await this.#run(args)) as Output;
  }

  /** Moves all parameters to the store, once; the first call does it too. */
  moveToStore(): Promise<void> {
    return this.whileAtRest('moveToStore', async () => {});
  }

  /** Makes what the store has now what a next process finds; optimizer steps do it too. */
  commit(): Promise<void> {
    return this.#alone('commit', 'commit', () => storeUseOf(this.#options.store).commit());
  }

  /** Writes what the store had no room for, and commits: a step that failed so was taken. */
  flush(): Promise<void> {
    return this.whileAtRest('flush', async () => {
      for (const { home } of this.flats) {
        await home.flush();
      }
      await storeUseOf(this.#options.store).commit();
    });
  }

  /**
   * Runs `body` on parameters that rest in the store.
   * @param call names it in messages
   * @throws {OffloadBusyError} beside another call, a backward or a step that has not ended
   */
  whileAtRest<T>(call: string, body: () => Promise<T>): Promise<T> {
    return this.#alone(call, call, async () => {
      await this.#moveToStore();
      return body();
    });
  }

  async #moveToStore(): Promise<void> {
    if (this.#isStored) {
      return;
    }
    await this.#stored.open(); // also where no flat does it
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

  // Note [one call at a time]
  // A forward, a backward, a step and a load each find the parameters, their host buffers and the
  // order of slices as the one before left them. They are told apart from calls that nobody awaited by
  // who is in the parameters' homes, and a forward inside a backward by what the engine runs: it belongs
  // to a checkpoint around the model if a rule is in progress that is not one of the slices' own.

  /** Runs `body` unless something else is under way. No scope is open before that is known. */
  async #alone<T>(call: string, name: string, body: () => Promise<T>): Promise<T> {
    this.#requireRest(call);
    const { device } = this;
    const rule = device.ruleInProgress;
    if (device.isInBackward && (rule === undefined || this.#nodes.has(rule))) {
      throw new OffloadBusyError(call, 'backward');
    }
    const ends = this.#resting.map((flat) => flatHomeOf(flat)!.occupy(name));
    try {
      for (const steps of new Set(this.#resting.map((flat) => flatHomeOf(flat)!.steps))) {
        await steps.rest(); // one that a store failed in is finished before anything is read
      }
      return await body();
    } finally {
      for (const end of ends) {
        end();
      }
    }
  }

  #requireRest(call: string): void {
    for (const flat of this.#resting) {
      const { occupant } = flatHomeOf(flat)!;
      if (occupant !== undefined) {
        throw new OffloadBusyError(call, occupant);
      }
    }
  }

  async #run(args: readonly unknown[]): Promise<unknown> {
    const { device } = this;
    const { computeDType, numMicrobatches } = this.#options;
    const callers = new Set(tensorsIn(args).map(({ storage }) => storage));
    const inputs =
      computeDType === 'f32'
        ? args
        : mapTensors(args, (x) => (isFloat(x.dtype) ? cast(x, computeDType) : x));
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
        batches = await this.#runSlice(slice, batches, call);
      }
      await this.#scheduler.settle();
      for (const { args: outputs } of batches) {
        await call.parked.unpark(storagesIn(outputs));
      }
    } catch (error) {
      this.#reset();
      throw error;
    } finally {
      call.isRunning = false;
    }
    return joinRows(batches.map(({ args: outputs }) => outputs[0]));
  }

  /** Gives back host memory of calls whose graphs were freed, by a backward or without one. */
  #forgetFreed(): void {
    for (const call of this.#calls) {
      call.parked.forgetFreed();
      if (call.parked.isEmpty && !call.isRunning) {
        this.#calls.delete(call);
      }
    }
  }

  /** Runs all micro-batches through one slice; what each gave is the next one's argument. */
  async #runSlice(
    slice: OffloadSlice,
    batches: readonly MicroBatch[],
    call: ModelCall,
  ): Promise<MicroBatch[]> {
    const { device } = this;
    const loaded = this.#begin('forward_load', slice);
    await this.#scheduler.enter(slice, 'forward');
    loaded();
    const before = device.random.state();
    const outputs: MicroBatch[] = [];
    let isReached = false;
    const parted = batches.length > 1 ? slice.batchNorms.map((norm) => norm.beginBatch()) : [];
    try {
      for (const { args, firstRow } of batches) {
        for (const batch of parted) {
          batch.beginPart();
        }
        // Every micro-batch draws what the whole batch would for its rows.
        device.random.restore({ ...before, rowOffset: before.rowOffset + firstRow });
        const { output, numNodes } = await this.#runMicroBatch(slice, args, call);
        isReached ||= numNodes > 0;
        outputs.push({ args: [output], firstRow });
        if (batches.length > 1 && device.isGradEnabled) {
          call.parked.park(storagesIn(output).filter((storage) => call.mayPark(storage)));
        }
      }
      for (const batch of parted) {
        batch.end();
      }
    } finally {
      for (const batch of parted) {
        batch.abandon();
      }
    }
    device.random.restore({ ...device.random.state(), rowOffset: before.rowOffset });
    this.#note(slice);
    this.#scheduler.leave(slice, isReached ? 'recorded' : 'unreached');
    const dropped = this.#begin('forward_drop', slice);
    for (const flat of slice.flats) {
      flat.keepWrites();
      flat.drop();
    }
    dropped();
    return outputs;
  }

  async #runMicroBatch(
    slice: OffloadSlice,
    args: readonly unknown[],
    call: ModelCall,
  ): Promise<{ readonly output: unknown; readonly numNodes: number }> {
    const { device } = this;
    await call.parked.unpark(storagesIn(args));
    const saved = new Set<Storage>();
    const remove = device.watchSaved((storage) => saved.add(storage));
    let output: unknown;
    try {
      output = await slice.run.call(...args);
    } finally {
      remove();
    }
    endHolds(args, new Set([...call.callers, ...storagesIn(output)]));
    if (!device.isGradEnabled) {
      return { output, numNodes: 0 };
    }
    const parkable = [...saved].filter((storage) => call.mayPark(storage));
    for (const storage of parkable) {
      call.saved.add(storage);
    }
    // What the next slice is about to use stays; arguments that an earlier slice saved go.
    const later = new Set(storagesIn(output));
    const idle = [...parkable, ...storagesIn(args)].filter(
      (storage) => call.saved.has(storage) && !later.has(storage),
    );
    call.parked.park(idle);
    // What passes through belongs to the slice that made it.
    const given = new Set(tensorsIn(args));
    const made = tensorsIn(output).filter((tensor) => !given.has(tensor));
    for (const { node } of made) {
      if (node !== undefined) {
        this.#nodes.add(node);
      }
    }
    const numNodes = device.beforeGradientOf(made, async (pass) => {
      await this.#enterBackward(slice, pass);
      await call.parked.unpark(parkable);
    });
    return { output, numNodes };
  }

  // ---- backward --------------------------------------------------------------------------------

  /** Before a slice's nodes run backward: the one before it leaves, and it comes. */
  async #enterBackward(slice: OffloadSlice, pass: Pass): Promise<void> {
    this.#beginPass(pass);
    if (this.#current === slice) {
      return;
    }
    this.#leaveBackward();
    this.#current = slice;
    const loaded = this.#begin('backward_load', slice);
    await this.#awaitStores(this.#options.loadAheadBytes);
    await this.#scheduler.enter(slice, 'backward');
    loaded();
    this.#endBackwardPass = this.#begin('backward_pass', slice);
  }

  #beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    if (!this.#isDry) {
      this.#requireRest('backward');
    }
    this.#pass = pass;
    this.#scheduler.beginBackward();
    pass.onEnd(() => this.#endPass());
    pass.onFailure(() => this.#reset());
  }

  /** Ships the slice's gradients to the store and frees its parameters. */
  #leaveBackward(): void {
    const slice = this.#current;
    if (slice === undefined) {
      return;
    }
    this.#note(slice);
    this.#current = undefined;
    this.#endBackwardPass();
    const dropped = this.#begin('backward_drop', slice);
    for (const flat of slice.flats) {
      const stored = flat.flushGradient({ isDry: this.#isDry });
      if (stored !== undefined) {
        this.#stores.set(stored, flat.flushBytes);
      }
      flat.keepWrites();
      flat.drop();
    }
    dropped();
  }

  /** A range of the slice in the device's trace; none of a dry run. */
  #begin(name: SliceRange, slice: OffloadSlice): () => void {
    return this.#isDry ? () => {} : beginRange(this.device, name, slice.layerNames);
  }

  /** Ranges around a run of a slice's layers. Its backward pauses while a checkpoint runs them again. */
  async #aroundRun(slice: OffloadSlice, run: () => Promise<unknown>): Promise<unknown> {
    const isAgain = this.#current === slice;
    if (isAgain) {
      this.#endBackwardPass();
    }
    const hasGrad = this.device.isGradEnabled;
    const end = this.#begin(
      hasGrad ? 'forward_pass_with_enable_grad' : 'no_grad_forward_pass',
      slice,
    );
    const output = await run();
    end();
    if (isAgain) {
      this.#endBackwardPass = this.#begin('backward_pass', slice);
    }
    return output;
  }

  async #endPass(): Promise<void> {
    this.#leaveBackward();
    this.#pass = undefined;
    this.#scheduler.endBackward();
    await this.#scheduler.settle();
    await this.#awaitStores(0);
    this.#forgetFreed();
    this.#parkingBuffers.sweep();
  }

  /** Waits for the oldest gradients on their way until those left take at most `capBytes`. */
  async #awaitStores(capBytes: number): Promise<void> {
    let left = [...this.#stores.values()].reduce((sum, bytes) => sum + bytes, 0);
    for (const [stored, bytes] of this.#stores) {
      if (left <= capBytes) {
        return;
      }
      await stored;
      this.#stores.delete(stored);
      left -= bytes;
    }
  }

  /** Back to rest after a failure; what the store has of this backward's gradients is not whole. */
  #reset(): void {
    this.#pass = undefined;
    this.#current = undefined;
    this.#scheduler.reset();
    this.#stores.clear();
    for (const flat of this.flats) {
      flat.abandonLoads();
      flat.gradient.reset();
      flat.drop();
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
    await this.#awaitStores(0); // inside a real backward they are not to be forgotten
    const [slices, pass] = [this.#slices, this.#pass];
    const candidate = this.#cut(runs);
    const peaks = new Map<OffloadSlice, number>();
    this.#slices = candidate;
    this.#peaks = peaks;
    this.#isDry = true;
    try {
      await this.device.dryRun(async () => {
        try {
          this.device.pool.resetPeak();
          await dryBackward(this.device, await this.#run(dryInputs(args)));
        } finally {
          this.#reset(); // also where it failed, or is inside a real backward
        }
      });
      return candidate.map((slice) => peaks.get(slice)!);
    } finally {
      this.#isDry = false;
      this.#peaks = undefined;
      this.#slices = slices;
      this.#pass = pass;
    }
  }

  /** In a dry run: what was in use while this slice was. */
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
      const layers = this.#layers.slice(start, start + count);
      start += count;
      const flats = [...new Set(layers.flatMap((layer) => layer.flats))];
      const { checkpointActivation } = this.#options;
      const around = (slice: OffloadSlice, run: () => Promise<unknown>) =>
        this.#aroundRun(slice, run);
      return new OffloadSlice(this.device, layers, { flats, checkpointActivation, around });
    });
  }

  /** Its flat parameters and buffers in words. */
  #describe(): string[] {
    const textOf = (name: string, { dtype, shape }: Tensor) =>
      `${name} ${dtype} [${shape.join(', ')}]`;
    return [
      ...this.flats.map(({ name, parameters }) => {
        return `${name}: ${parameters.map(({ path, tensor }) => textOf(path, tensor)).join(', ')}`;
      }),
      ...this.namedBuffers().map(([name, buffer]) => `buffer ${textOf(name, buffer)}`),
    ];
  }

  #layerSizes(): number[] {
    return this.#layers.map(({ module }) =>
      module.parameters().reduce((sum, { size }) => sum + size, 0),
    );
  }

  #startLoad(flat: OffloadedFlat): FlatLoad | undefined {
    return this.#isDry ? undefined : flat.startLoad();
  }

  async #finishLoad(flat: OffloadedFlat, load: FlatLoad | undefined): Promise<void> {
    if (load === undefined) {
      flat.fillDry();
    } else {
      await flat.finishLoad(load);
    }
  }

  protected override releaseOwned(): void {
    this.#endBudget();
    this.#scheduler.reset();
    for (const flat of this.flats) {
      flat.dispose();
    }
    this.#stored.close();
  }
}
