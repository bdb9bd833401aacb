// Wraps a module so that each rank holds a shard of its parameters, gradients and optimizer state
// (ZeRO-3, as fairscale's FullyShardedDataParallel). Wrap inner modules first: an outer instance
// takes the parameters that the inner ones have left. All ranks have to wrap alike. The optimizer
// may be created before the wrapping or after it.

import { PeerFailedError, type ProcessGroup } from '@shardweave/collectives';
import { Module, resetParameters } from '@shardweave/nn';
import { dealtGroups, HELD, type HeldBy, requireModule } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { describeInstance } from './describe-instance.js';
import { FsdpConfigError, FsdpError } from './errors.js';
import { heldByInstance } from './held/held-shards.js';
import { innerModule } from './inner-module.js';
import type { FsdpOptions } from './options.js';
import { resolveOptions } from './resolve-options.js';
import { dropBefore, gatherBefore } from './tree/backward-hooks.js';
import { castInputs } from './tree/cast-inputs.js';
import { Instance } from './tree/instance.js';
import { OpenForward } from './tree/open-forward.js';
import { ownerOf } from './tree/own-parameters.js';
import type { TrainingState } from './tree/training-state.js';
import { INSTANCE } from './tree/tree-instance.js';
import { bareOf, unwrapTree } from './tree/unwrap-tree.js';
import { groupCalls } from './unit/group-rounds.js';
import type { ShardedUnit } from './unit/sharded-unit.js';
import type { DivideFactors } from './unit/unit-gradient.js';

/**
 * Wraps a module so that each rank holds only its shard of the parameters between uses.
 * @example
 * ```ts
 * import { createMemoryGroup } from '@shardweave/collectives';
 * import { FullyShardedDataParallel } from '@shardweave/fsdp';
 * import { AdamW, Gpt2, stateDict } from '@shardweave/nn';
 * import { Device, mean } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2 };
 * const ranks = createMemoryGroup(2).map(async (processGroup, rank) => {
 *   const device = new Device(backend);
 *   const model = new FullyShardedDataParallel(new Gpt2(device, config), { processGroup });
 *   const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
 *   await device.scope(async () => {
 *     const ids = device.tensor(Int32Array.of(1, 2, 3, 4), [1, 4]);
 *     const targets = device.tensor(Int32Array.of(2, 3, 4, 5 + rank), [1, 4]);
 *     await mean(await model.call(ids, { targets })).backward();
 *     await optimizer.step();
 *     optimizer.zeroGrad();
 *   });
 *   const whole = await stateDict(model); // what each rank has half of
 *   if (rank === 0) console.log(whole.get('transformer.wte.weight')?.shape); // logs [ 16, 16 ]
 *   await processGroup.close();
 * });
 * await Promise.all(ranks);
 * await backend.dispose();
 * ```
 */
// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class FullyShardedDataParallel<
  Args extends readonly any[] = any,
  Output = any,
  Inner extends Module<Args, Output> = Module<Args, Output>,
> extends Module<Args, Output> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  /** The state that the rest of the package keeps for this instance; see tree/instance.ts. */
  readonly [INSTANCE]: object;
  /**
   * The wrapped module with its own type, through which a program reaches that module's properties.
   */
  readonly module: Inner;
  readonly #instance: Instance;
  /**
   * The last error of a forward that the other ranks have been told of, so that `call` does not
   * tell them twice.
   */
  #toldError: unknown;

  /**
   * @throws {FsdpConfigError} for options that contradict each other, for packed parameters, and
   * for f32 parameters where computation is in 16 bits without f32 masters
   */
  constructor(module: Inner & Module<Args, Output>, options: FsdpOptions) {
    requireModule('fsdp', module, FsdpConfigError);
    super(module.device);
    this.module = this.child('module', module);
    const resolved = resolveOptions(options);
    const name = options.name ?? 'fsdp';
    this.#instance = new Instance({ wrapper: this, module, name, options: resolved });
    this[INSTANCE] = this.#instance;
  }

  /**
   * How the functions of nn reach what it shards.
   * @internal
   */
  get [HELD](): HeldBy {
    return heldByInstance(this.#instance);
  }

  override childPrefix(): string {
    return '';
  }

  get processGroup(): ProcessGroup {
    return this.#instance.processGroup;
  }

  /** The ranks that hold a replica of this rank's shard; undefined without hybrid sharding. */
  get replicateGroup(): ProcessGroup | undefined {
    return this.#instance.replicateGroup;
  }

  /** The name of the instance in errors and traces. */
  get name(): string {
    return this.#instance.name;
  }

  /**
   * The flat parameters of this instance itself; empty where inner instances hold all parameters.
   * @internal
   */
  get units(): readonly ShardedUnit[] {
    return this.#instance.units;
  }

  get trainingState(): TrainingState {
    return this.#instance.activity.state;
  }

  get isRoot(): boolean {
    return this.#instance.isRoot;
  }

  /**
   * The numeric classes of all ranks, each once, sorted. Ranks of one class round alike. Ranks of
   * several classes train together, but dividing the work among them in another way gives other
   * bits. Empty on a single rank, and before initialize.
   */
  get numericClasses(): readonly string[] {
    return this.#instance.tree?.numericClasses ?? [];
  }

  /**
   * The divisors that are applied to gradients before and after their reduction; set by
   * setGradientDivideFactors.
   */
  get divideFactors(): DivideFactors {
    return this.#instance.options.divide;
  }

  /**
   * With gradientGroups, the group that each of a step's calls runs on this rank, in order;
   * undefined stands for an empty call, of no rows, which takes part and gives nothing. All ranks
   * make as many: 8 groups over 3 ranks are 0, 3, 6 and 1, 4, 7 and 2, 5, undefined, and with
   * `shardTrained: false` 0, 1, 2 and 3, 4, 5 and 6, 7, undefined.
   */
  get groupCalls(): readonly (number | undefined)[] {
    const { gradientGroups, shardTrained } = this.#instance.options;
    if (gradientGroups === undefined) {
      return [];
    }
    return (shardTrained ? groupCalls : dealtGroups)(gradientGroups, this.processGroup);
  }

  /** This instance and those nested below it, outer first. */
  instances(): FullyShardedDataParallel[] {
    return this.#instance.instances().map(({ wrapper }) => wrapper as FullyShardedDataParallel);
  }

  // ---- forward and backward --------------------------------------------------------------------

  /**
   * Calls the module as any other. Where a hook around the outermost forward throws, the other
   * ranks are told, so that none waits for this one.
   */
  override async call(...args: Args): Promise<Output> {
    try {
      return await super.call(...args);
    } catch (error) {
      const { tree } = this.#instance;
      const isOutermost = tree?.outermost === undefined && !this.device.isInBackward;
      const isOfAll = error instanceof FsdpError || error instanceof PeerFailedError;
      const isTold = isOfAll || error === this.#toldError;
      if (tree !== undefined && isOutermost && !isTold) {
        await tree.fail('forward', error);
      }
      throw error;
    }
  }

  override async forward(...args: Args): Promise<Output> {
    const instance = this.#instance;
    const phase = this.device.isInBackward ? 'backward' : 'forward'; // run again inside a backward?
    const endForward = instance.activity.beginForward(); // before any wait, to refuse other calls
    let opened: OpenForward | undefined;
    try {
      opened = await OpenForward.open(instance, phase);
      const { tree, isOutermost } = opened;
      opened.begin();
      await opened.unshard();
      dropBefore(instance, args, tree);
      const output = await this.module.call(...castInputs(args, instance));
      endForward();
      instance.reshard();
      instance.shared.reshard();
      opened.noteUse(gatherBefore(instance, output, tree));
      if (isOutermost) {
        await tree.endForward();
      }
      return output;
    } catch (error) {
      if (opened?.isOutermost === true) {
        this.#toldError = error;
        await opened.tree.fail('forward', error);
      }
      throw opened?.tree.toFsdpError(error, phase) ?? error;
    } finally {
      opened?.end();
      endForward();
    }
  }

  /**
   * Frees the full parameters, unless the instance keeps them after forward or another instance is
   * using them.
   */
  reshard(): void {
    this.#instance.reshard();
  }

  /**
   * Elects the root and opens the links of its tree. Collective on the first call, and whenever
   * instances were added since. Forward and every other collective call do it by themselves. Waits
   * for the collective calls made before it.
   * @throws {FsdpConfigError} where a parameter is not in exactly one flat parameter, and on all
   * ranks where they differ in instances or options
   */
  async initialize(): Promise<void> {
    await this.#instance.initialize();
  }

  /**
   * Declares that the module uses `parameter`, which another instance shards. That is needed only
   * for a parameter that was put into the module after this instance was made; earlier ones are
   * found automatically.
   * @throws {FsdpConfigError} where no other instance shards it
   */
  appendSharedParam(parameter: Tensor): void {
    const instance = this.#instance;
    instance.activity.expect('appendSharedParam', ['idle']);
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
   * Runs `body` without reducing gradients: the backwards inside it add up whole f32 gradients on
   * each rank, and the next backward after it reduces them. Root only.
   * @throws {FsdpStateError} on an inner instance, or inside forward, backward or summonFullParams
   */
  async noSync<T>(body: () => T | Promise<T>): Promise<T> {
    const tree = await this.#instance.initialize();
    if (!this.isRoot) {
      throw this.#instance.stateError('noSync', 'the root instance');
    }
    this.#instance.activity.expect('noSync', ['idle']);
    const { gradientGroups } = this.#instance.options;
    if (gradientGroups !== undefined) {
      throw new FsdpConfigError(
        `noSync: expected no gradientGroups, got ${gradientGroups}. A step is as many backwards as groupCalls has, and each of them is reduced.`,
      );
    }
    const before = tree.isSyncing;
    tree.isSyncing = false;
    try {
      return await body();
    } finally {
      tree.isSyncing = before;
    }
  }

  // ---- the module inside -----------------------------------------------------------------------

  /**
   * The child at `index` of the module inside all wrappers; a negative index counts from the end.
   */
  at(index: number): Module | undefined {
    return [...innerModule(this).children().values()].at(index);
  }

  /** The child called `name` of the module inside all wrappers. */
  get(name: string): Module | undefined {
    return innerModule(this).children().get(name);
  }

  /**
   * Makes new initial values for all layers inside, as nn's resetParameters does; each rank keeps
   * its shard of them. It has to be called inside summonFullParams of this instance with its nested
   * ones.
   * @throws {FsdpStateError} outside summonFullParams, and without the option allowResetParameters
   */
  resetParameters(options: { readonly seed?: number } = {}): void {
    if (!this.#instance.options.allowResetParameters) {
      throw this.#instance.stateError('resetParameters', 'the option allowResetParameters');
    }
    for (const instance of this.#instance.instances()) {
      instance.activity.expect('resetParameters', ['summonFullParams']);
    }
    resetParameters(this.module, { ...options, writesBack: true });
  }

  override toString(): string {
    return describeInstance(this.#instance);
  }

  /** The text that console.log shows in Node. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString();
  }

  // ---- states ----------------------------------------------------------------------------------

  /** @throws {FsdpStateError} unless the instance is in one of `states` */
  assertState(...states: readonly TrainingState[]): void {
    this.#instance.activity.expect('assertState', states);
  }

  /**
   * Frees gradients, shards and what is gathered, and gives the module back, to be wrapped again in
   * a group of other ranks: how a job goes on without ranks that it lost. Trained parameters keep
   * their values, and an optimizer its state. Frozen ones have none any more: load them after
   * wrapping. It sends nothing, so a job that has failed does no harm. This wrapper and those
   * inside are of no use afterwards. Root only.
   * @throws {FsdpStateError} inside forward, backward or summonFullParams, and where trained
   * parameters are sharded; see the option shardTrained
   */
  unwrap(): Inner {
    unwrapTree(this.#instance);
    return bareOf(this.#instance) as Inner;
  }

  protected override releaseOwned(): void {
    this.#instance.dispose();
  }
}
