// Wraps a module so that each rank holds a shard of its parameters, gradients and optimizer state
// (ZeRO-3; fairscale's FullyShardedDataParallel). Wrap inner modules first: an outer instance takes
// the parameters that are left. Create it before or after the optimizer, alike on all ranks.

import type { ProcessGroup } from '@shardweave/collectives';
import { Module, resetParameters } from '@shardweave/nn';
import type { UseKind } from '@shardweave/nn/flat';
import type { Pass, Tensor } from '@shardweave/tensor-core';
import { castBuffers, castInputs } from './cast-inputs.js';
import { describeInstance } from './describe-instance.js';
import { FsdpConfigError, FsdpError } from './errors.js';
import type { FsdpOptions } from './options.js';
import { resolveOptions } from './resolve-options.js';
import { CallQueue } from './tree/call-queue.js';
import { callQueuesOf } from './tree/collective-call.js';
import { Instance, type Tree } from './tree/instance.js';
import { INSTANCE, type TrainingState } from './tree/tree-instance.js';
import { ownerOf } from './unit/own-parameters.js';
import { occupyUnits } from './unit/residence.js';
import type { ShardedUnit } from './unit/sharded-unit.js';
import type { DivideFactors } from './unit/unit-gradient.js';
import { innerModule } from './wrap/inner-module.js';

/** Wraps a module so that each rank holds only its shard of the parameters between uses. */
// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class FullyShardedDataParallel<
  Args extends readonly any[] = any,
  Output = any,
  Inner extends Module<Args, Output> = Module<Args, Output>,
> extends Module<Args, Output> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  /** What the package itself needs of it: the tree, states and saves; see tree/instance.ts. */
  readonly [INSTANCE]: object;
  /** What it wraps, with its own type: the way to that module's properties. */
  readonly module: Inner;
  readonly #instance: Instance;
  /** What a forward threw last that the other ranks know of. */
  #toldError: unknown;

  /**
   * @throws {FsdpConfigError} for contradicting options, and for parameters that were packed or are
   * f32 where computation is in 16 bits without masters
   */
  constructor(module: Inner & Module<Args, Output>, options: FsdpOptions) {
    super(module.device);
    this.module = this.child('module', module);
    const resolved = resolveOptions(options);
    const name = options.name ?? 'fsdp';
    this.#instance = new Instance({ wrapper: this, module, name, options: resolved });
    this[INSTANCE] = this.#instance;
  }

  override childPrefix(): string {
    return '';
  }

  get processGroup(): ProcessGroup {
    return this.#instance.processGroup;
  }

  /** Over which shards are replicated; undefined without hybrid sharding. */
  get replicateGroup(): ProcessGroup | undefined {
    return this.#instance.replicateGroup;
  }

  /** For errors and traces. */
  get name(): string {
    return this.#instance.name;
  }

  /** Its own flat parameters; none where inner instances hold all parameters. */
  get units(): readonly ShardedUnit[] {
    return this.#instance.units;
  }

  get trainingState(): TrainingState {
    return this.#instance.trainingState;
  }

  get isRoot(): boolean {
    return this.#instance.isRoot;
  }

  /**
   * The numeric classes of all ranks, each once, sorted: with several, ranks train together, but
   * another division of the work among them has other bits. Empty on one rank, and before
   * initialize.
   */
  get numericClasses(): readonly string[] {
    return this.#instance.tree?.numericClasses ?? [];
  }

  /** What gradients are divided by around their reduction; set by setGradientDivideFactors. */
  get divideFactors(): DivideFactors {
    return this.#instance.options.divide;
  }

  /** This instance and those nested below it, outer first. */
  instances(): FullyShardedDataParallel[] {
    return this.#instance.instances().map(({ wrapper }) => wrapper as FullyShardedDataParallel);
  }

  // ---- forward and backward --------------------------------------------------------------------

  /** As any module's; the other ranks learn where a hook around the outermost forward throws. */
  override async call(...args: Args): Promise<Output> {
    try {
      return await super.call(...args);
    } catch (error) {
      const { tree } = this.#instance;
      const isOutermost = tree?.outermost === undefined && !this.device.isInBackward;
      const isTold = error instanceof FsdpError || error === this.#toldError;
      if (tree !== undefined && isOutermost && !isTold) {
        await tree.fail('forward', error);
      }
      throw error;
    }
  }

  override async forward(...args: Args): Promise<Output> {
    const instance = this.#instance;
    const { shared, options } = instance;
    const before = instance.trainingState;
    instance.expectState('forward', ['idle', 'backwardPre', 'backwardPost']);
    instance.trainingState = 'forward'; // at once: calls made from here on are refused
    const isRecomputing = this.device.isInBackward;
    const isInside = isRecomputing || instance.tree?.outermost !== undefined;
    const leave = isInside ? () => {} : occupyUnits(instance.instances(), 'forward');
    let tree: Tree | undefined;
    let isOutermost = false;
    try {
      tree = (isInside ? instance.tree : undefined) ?? (await instance.initialize());
      isOutermost = !isRecomputing && tree.outermost === undefined;
      if (isOutermost) {
        if (this.isRoot) {
          for (const each of tree.instances) {
            castBuffers(each.module, each.options.bufferDType);
          }
        }
        tree.beginForward(instance);
        this.device.random.separate(tree.root.batchRank);
      }
      if (this.units.length > 0) {
        await tree.scheduler.enter(instance, isRecomputing ? 'backward' : 'forward');
      }
      await shared.enter(tree, isRecomputing ? 'backward' : 'forward');
      this.#dropBeforeInputs(tree, args);
      const output = await this.module.call(
        ...castInputs(args, { ...options, isRoot: this.isRoot }),
      );
      instance.trainingState = before === 'backwardPost' ? 'backwardPre' : before;
      instance.reshard();
      shared.reshard();
      const kind = this.#hookOutput(tree, output);
      if (!isRecomputing) {
        if (this.units.length > 0) {
          tree.scheduler.leave(instance, kind);
        }
        for (const owner of shared.owners) {
          tree.scheduler.leave(owner, kind);
        }
      }
      if (isOutermost) {
        await tree.endForward();
      }
      return output;
    } catch (error) {
      if (isOutermost) {
        this.#toldError = error;
        await tree!.fail('forward', error);
      }
      throw tree?.explained(error, isRecomputing ? 'backward' : 'forward') ?? error;
    } finally {
      leave();
      if (isOutermost) {
        tree!.outermost = undefined;
      }
      if (instance.trainingState === 'forward') {
        instance.trainingState = before === 'backwardPost' ? 'backwardPre' : before;
      }
    }
  }

  /** Frees its full parameters after forward, where it reshards and nobody else uses them now. */
  reshard(): void {
    this.#instance.reshard();
  }

  /**
   * Elects the root and opens the links of its tree; collective on the first call, and where
   * instances were put in since. Forward calls it, as does whatever else needs all ranks. Waits for
   * calls made before.
   * @throws {FsdpConfigError} where a parameter is not in exactly one flat parameter, and on all
   * ranks where they differ in instances or options
   */
  async initialize(): Promise<void> {
    await this.#instance.initialize();
  }

  /** Has its parameters made present before its output's gradient is used. */
  #hookOutput(tree: Tree, output: Output): UseKind {
    if (!this.device.isGradEnabled) {
      return 'unrecorded';
    }
    const hook = (pass: Pass) => this.#beforeBackward(tree, pass);
    return this.device.beforeGradientOf(output, hook) > 0 ? 'recorded' : 'unreached';
  }

  async #beforeBackward(tree: Tree, pass: Pass): Promise<void> {
    const instance = this.#instance;
    if (!tree.isInBackward) {
      await CallQueue.ended(callQueuesOf(tree.instances));
    }
    tree.beginPass(pass);
    instance.expectState('backward', ['idle', 'backwardPre', 'backwardPost']);
    if (instance.trainingState === 'idle') {
      instance.trainingState = 'backwardPre';
    }
    for (const unit of this.units) {
      unit.gradient.sum.beginPass(pass);
    }
    try {
      await tree.agree();
      await instance.shared.enter(tree, 'backward');
      if (this.units.length > 0) {
        await tree.scheduler.enter(instance, 'backward');
      }
    } catch (error) {
      throw tree.explained(error, 'backward');
    }
  }

  /**
   * Frozen parameters are needed for the gradients of inputs, after the last gradient of their
   * own: they go once an input's gradient is passed on, when this module's nodes have all run. Not
   * where another rank may go another way: it would gather them again for an earlier use.
   */
  #dropBeforeInputs(tree: Tree, args: Args): void {
    const instance = this.#instance;
    if (
      tree.findsUnused ||
      instance.shared.hasUsers ||
      !this.device.isGradEnabled ||
      !this.units.some((unit) => unit.hasFrozen)
    ) {
      return;
    }
    this.device.beforeGradientOf(args, () => {
      if (instance.isDroppedAfterBackward) {
        instance.drop();
      }
    });
  }

  /**
   * Uses a parameter that another instance shards, for a module that got it after this instance was
   * made; those it had then are found by themselves.
   * @throws {FsdpConfigError} where no other instance shards it
   */
  appendSharedParam(parameter: Tensor): void {
    const instance = this.#instance;
    instance.expectState('appendSharedParam', ['idle']);
    const owner = ownerOf(parameter) as Instance | undefined;
    if (owner === undefined || owner === instance) {
      throw new FsdpConfigError(
        `appendSharedParam: expected a parameter that another instance shards, got '${parameter.name || `[${parameter.shape.join(', ')}]`}'. Wrap the module that owns it first.`,
      );
    }
    instance.shared.addOwner(owner);
    owner.shared.addUser(instance);
  }

  // ---- accumulation ----------------------------------------------------------------------------

  /**
   * Runs `body` without reducing gradients: its backwards add up unsharded f32 gradients, which the
   * next backward outside reduces. Root only.
   * @throws {FsdpStateError} on an inner instance, or inside forward, backward or summon
   */
  async noSync<T>(body: () => T | Promise<T>): Promise<T> {
    const tree = await this.#instance.initialize();
    if (!this.isRoot) {
      throw this.#instance.stateError('noSync', 'the root instance');
    }
    this.#instance.expectState('noSync', ['idle']);
    const before = tree.isSyncing;
    tree.isSyncing = false;
    try {
      return await body();
    } finally {
      tree.isSyncing = before;
    }
  }

  // ---- the module inside -----------------------------------------------------------------------

  /** A child of the module inside all wrappers, by its place; from the end where negative. */
  at(index: number): Module | undefined {
    return [...innerModule(this).children().values()].at(index);
  }

  /** A child of the module inside all wrappers, by its name. */
  get(name: string): Module | undefined {
    return innerModule(this).children().get(name);
  }

  /**
   * Makes new initial values for all layers inside, as nn's resetParameters does; each rank keeps
   * its shard. Inside summonFullParams of this instance and those below it.
   * @throws {FsdpStateError} outside of that, and without the option allowResetParameters
   */
  resetParameters(options: { readonly seed?: number } = {}): void {
    if (!this.#instance.options.allowResetParameters) {
      throw this.#instance.stateError('resetParameters', 'the option allowResetParameters');
    }
    for (const instance of this.#instance.instances()) {
      instance.expectState('resetParameters', ['summonFullParams']);
    }
    resetParameters(this.module, { ...options, writesBack: true });
  }

  override toString(): string {
    return describeInstance(this.#instance, this.#instance.options);
  }

  /** What console.log shows in Node. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString();
  }

  // ---- states ----------------------------------------------------------------------------------

  /** @throws {FsdpStateError} unless the instance is in one of the states */
  assertState(...states: readonly TrainingState[]): void {
    this.#instance.expectState('assertState', states);
  }

  protected override releaseOwned(): void {
    this.#instance.dispose();
  }
}
