// Samples a device's memory at every module of a model, through the modules' hooks. It changes no
// result, but it waits for the device at every module, so it is not for runs whose time matters.
//
// Note [order of backward hooks]
// A module's backward is sampled before the gradient of its outputs is used. Wrappers around the
// module (sharding, offload) use the same event to make its parameters present, and the hooks of
// one output run in the order in which they were added. So the tracker adds its own hooks when the
// outermost call has ended, after all of theirs. It begins with the last module: a module that
// passes its input on shares the event of its input, and its backward comes earlier.

import type { Module } from '@shardweave/nn';
import { byteSize, type Device, type Pass, type Storage, tensorsIn } from '@shardweave/tensor-core';
import {
  allOptional,
  type OptionRules,
  oneOf,
  optionChecks,
} from '@shardweave/tensor-core/options';
import { MemoryTrackerConfigError } from './errors.js';
import { GatherCounter, type GatherSource } from './gather-source.js';
import type { MemoryPhase, MemorySample, MemoryTrace } from './memory-trace.js';

/** The module calls that are sampled, and the groups whose all-gathers are counted. */
export interface LayerMemoryTrackerOptions {
  /**
   * 'leaves': sample the calls of modules that call no module themselves. 'all': sample every call.
   * Default 'leaves'.
   */
  readonly modules?: 'leaves' | 'all';
  /** Process groups whose all-gathers are counted. Default none. */
  readonly gathers?: readonly GatherSource[];
}

const RULES: OptionRules<LayerMemoryTrackerOptions> = allOptional({
  modules: oneOf('leaves', 'all'),
  gathers: { expected: 'an array of process groups', holds: Array.isArray },
});

const { checkOptions } = optionChecks(MemoryTrackerConfigError);

/** The module and pass that a sample belongs to. */
interface Place {
  readonly module: Module;
  readonly name: string;
  readonly pass: number;
}

/** A call of a module that is under way. */
interface Call {
  readonly module: Module;
  readonly inputs: ReadonlySet<Storage>;
  readonly liveBefore: number;
  isLeaf: boolean;
}

/** The output of a sampled forward, kept until the outermost call ends. */
interface Output {
  readonly place: Place;
  readonly output: unknown;
}

/**
 * Tracks a model from its construction until `stop`. All modules must be on one device.
 * @example
 * ```ts
 * import { LayerMemoryTracker, suggestCheckpoints } from '@shardweave/memory-tracker';
 * import { Gpt2 } from '@shardweave/nn';
 * import { Device, mean } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 2, n_head: 2 };
 * const model = new Gpt2(device, config);
 * const tracker = new LayerMemoryTracker(model);
 * await device.scope(async () => {
 *   const ids = device.tensor(Int32Array.of(1, 2, 3, 4), [1, 4]);
 *   await mean(await model.call(ids, { targets: ids })).backward();
 * });
 * tracker.stop();
 * console.log(suggestCheckpoints(tracker.trace(), 1).modules.length); // logs 1
 * device.dispose();
 * await backend.dispose();
 * ```
 */
export class LayerMemoryTracker {
  readonly #model: Module;
  readonly #device: Device;
  readonly #isOfLeaves: boolean;
  readonly #gathers: GatherCounter;
  /** The function that removes the hooks of each module. */
  readonly #hooked = new Map<Module, () => void>();
  #samples: MemorySample[] = [];
  #calls: Call[] = [];
  #outputs: Output[] = [];
  #pass = -1;
  #gatheredBefore = 0;
  #isTracking = true;

  /**
   * @throws {MemoryTrackerConfigError} for a module on another device than `model`, and for unknown
   * options
   */
  constructor(model: Module, options: LayerMemoryTrackerOptions = {}) {
    checkOptions('memory tracker', options, RULES);
    this.#model = model;
    this.#device = model.device;
    this.#isOfLeaves = (options.modules ?? 'leaves') === 'leaves';
    checkDevices(model);
    this.#gathers = new GatherCounter(options.gathers ?? []);
    this.#hookModules();
  }

  get isTracking(): boolean {
    return this.#isTracking;
  }

  /** What has been recorded so far. */
  trace(): MemoryTrace {
    return { samples: [...this.#samples] };
  }

  /** Forgets what was recorded; sums since the beginning go on. */
  clear(): void {
    this.#samples = [];
  }

  /** Removes the hooks; the trace stays. Idempotent. */
  stop(): void {
    this.#isTracking = false;
    for (const remove of this.#hooked.values()) {
      remove();
    }
    this.#hooked.clear();
    this.#gathers.stop();
    this.#calls = [];
    this.#outputs = [];
  }

  [Symbol.dispose](): void {
    this.stop();
  }

  /** Hooks those modules that have no hooks yet, under the names that they have at this time. */
  #hookModules(): void {
    for (const [name, module] of this.#model.namedModules()) {
      if (this.#hooked.has(module)) {
        continue;
      }
      const remove = module.aroundForward({
        before: (args) => this.#begin(module, args),
        afterScope: (output) => this.#end(module, name, output),
      });
      this.#hooked.set(module, remove);
    }
  }

  async #begin(module: Module, args: readonly unknown[]): Promise<void> {
    if (module === this.#model) {
      // A forward that threw has left its calls open.
      this.#calls = [];
      this.#outputs = [];
      // Modules may have been added since the last forward.
      checkDevices(this.#model);
      this.#hookModules();
    }
    if (this.#calls.length === 0 && !this.#device.isInBackward) {
      this.#pass += 1;
    }
    const around = this.#calls.at(-1);
    if (around !== undefined) {
      around.isLeaf = false;
    }
    await this.#device.synchronize();
    this.#calls.push({
      module,
      inputs: storagesIn(args),
      liveBefore: this.#device.ledger.live().total,
      isLeaf: true,
    });
  }

  async #end(module: Module, name: string, output: unknown): Promise<void> {
    const index = this.#calls.findLastIndex((call) => call.module === module);
    if (index < 0) {
      return; // stopped, or the failure of another call came between
    }
    const [call] = this.#calls.splice(index);
    const { inputs, liveBefore, isLeaf } = call!;
    if (isLeaf || !this.#isOfLeaves) {
      await this.#device.synchronize();
      const place = { module, name, pass: this.#pass };
      const made = [...storagesIn(output)].filter((storage) => !inputs.has(storage));
      this.#record(place, this.#device.isInBackward ? 'recompute' : 'forward', {
        activationBytes: made.reduce((sum, { byteLength }) => sum + byteLength, 0),
        forwardDeltaBytes: this.#device.ledger.live().total - liveBefore,
      });
      // Without grad mode only a checkpoint may still give the outputs a node, which is then not
      // their own.
      if (this.#device.isGradEnabled) {
        this.#outputs.push({ place, output });
      }
    }
    if (this.#calls.length === 0) {
      this.#hookBackward();
    }
  }

  /** Hooks the backward of all outputs; see Note [order of backward hooks]. */
  #hookBackward(): void {
    for (const { place, output } of this.#outputs.splice(0).reverse()) {
      let last: Pass | undefined;
      this.#device.beforeGradientOf(output, async (pass) => {
        if (pass === last || !this.#isTracking) {
          return; // several outputs, one backward
        }
        last = pass;
        await this.#device.synchronize();
        this.#record(place, 'backward', { activationBytes: 0, forwardDeltaBytes: 0 });
      });
    }
  }

  #record(
    { module, name, pass }: Place,
    phase: MemoryPhase,
    made: Pick<MemorySample, 'activationBytes' | 'forwardDeltaBytes'>,
  ): void {
    const { live, reservedBytes } = this.#device.memory();
    const totalGatheredBytes = this.#gathers.totalBytes;
    this.#samples.push({
      name,
      type: module.constructor.name,
      phase,
      pass,
      parameterBytes: parameterBytesOf(module),
      liveBytes: live,
      reservedBytes,
      gatheredBytes: totalGatheredBytes - this.#gatheredBefore,
      totalGatheredBytes,
      ...made,
    });
    this.#gatheredBefore = totalGatheredBytes;
  }
}

function checkDevices(model: Module): void {
  const stray = model.namedModules().find(([, { device }]) => device !== model.device);
  if (stray === undefined) {
    return;
  }
  throw new MemoryTrackerConfigError(
    `memory tracker: expected modules of one device, got another's at '${stray[0]}'. Track each device's modules by a tracker of its own.`,
  );
}

function storagesIn(value: unknown): ReadonlySet<Storage> {
  return new Set(tensorsIn(value).map(({ storage }) => storage));
}

function parameterBytesOf(module: Module): number {
  return module.parameters().reduce((sum, { size, dtype }) => sum + size * byteSize(dtype), 0);
}
