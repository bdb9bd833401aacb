// Trains a model that is larger than its device: layers rest in host memory or on disk, and each
// slice of them is on the device only while it runs forward or backward (fairscale's OffloadModel).
// Saved activations wait on the host between the two. The optimizer, made on parameters(), steps
// the parameters where they rest, one layer at a time.

import { isModule, Module, type Sequential } from '@shardweave/nn';
import { HELD, type HeldBy, HostBuffers, StoredModel, storeUseOf } from '@shardweave/nn/flat';
import { OffloadConfigError } from './errors.js';
import { HELD_BY_OFFLOAD } from './held-at-rest.js';
import { layersOf, makeFlats } from './offload-layers.js';
import { OneCall } from './one-call.js';
import { type OffloadOptions, type ResolvedOffloadOptions, resolveOptions } from './options.js';
import { LayerCalls } from './slices/layer-calls.js';
import type { Layer } from './slices/offload-slice.js';
import type { OffloadedFlat } from './slices/offloaded-flat.js';
import { SlicePasses } from './slices/slice-passes.js';
import { Slicing } from './slices/slicing.js';

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
  readonly #stagingBuffers: HostBuffers;
  readonly #stored: StoredModel;
  readonly #leaveStore: () => void;
  #isStored = false;
  #endBudget = () => {};
  readonly #calling: OneCall;
  readonly #passes: SlicePasses;
  readonly #slicing: Slicing;

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
    this.#stagingBuffers = new HostBuffers({ isDry: this.#options.store.isDry });
    if (isModule(model)) {
      this.child('module', model);
    } else {
      modules.forEach((module, i) => void this.child(String(i), module));
    }
    const layers = modules.map((module, i): Layer => ({ name: String(i), module, flats: [] }));
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
    flats.push(...makeFlats(layers, this.namedParameters(), flatOptions));
    this.flats = flats;
    this.#leaveStore = use.claim([this.#options.name, ...flats.map(({ name }) => name)], device);
    const resting = [...new Set(this.parameters().map(({ piece }) => piece!.flat))];
    this.#calling = new OneCall(device, resting);
    const layerCalls = new LayerCalls(model, modules.length);
    const sliced = { device, options: this.#options, layers, flats, layerCalls };
    this.#passes = new SlicePasses(sliced, this.#calling);
    const given = isModule(model) ? undefined : modules.map(() => 1);
    this.#slicing = new Slicing(sliced, this.#passes, given);
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
    return this.#slicing.slices.map(({ layerNames }) => layerNames);
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
    this.#passes.forgetFreed();
    const [staging, parking] = [this.#stagingBuffers, this.#passes.parkingBuffers];
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
    this.#passes.backward.leave(); // a forward inside a backward: it is being run again
    const slices = await this.#slicing.choose(args);
    return (await this.#passes.run(slices, args)) as Output;
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

  protected override releaseOwned(): void {
    this.#endBudget();
    this.#passes.abandonLoads();
    for (const flat of this.flats) {
      flat.dispose();
    }
    this.#stored.close();
    this.#leaveStore();
  }
}
