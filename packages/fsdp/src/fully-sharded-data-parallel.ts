// Wraps a module so that each rank holds a shard of its parameters, gradients and optimizer state
// (ZeRO-3; fairscale's FullyShardedDataParallel). Wrap inner modules first: an outer instance takes
// the parameters that are left. Create it before or after the optimizer, alike on all ranks.

import type { ProcessGroup } from '@shardweave/collectives';
import { Module, resetParameters } from '@shardweave/nn';
import type { StoredModel, UseKind } from '@shardweave/nn/flat';
import type { Pass, Tensor } from '@shardweave/tensor-core';
import { castBuffers, castInputs } from './cast-inputs.js';
import { describeInstance } from './describe-instance.js';
import { FsdpConfigError, FsdpError, FsdpStateError } from './errors.js';
import { type FsdpOptions, type ResolvedFsdpOptions, resolveOptions } from './options.js';
import { agreeOnInstances, comparedLines } from './tree/agree-on-instances.js';
import { CallQueue } from './tree/call-queue.js';
import { callQueuesOf } from './tree/collective-call.js';
import { FsdpTree } from './tree/fsdp-tree.js';
import { failureText, isLocalFailure } from './tree/rank-failure.js';
import { FSDP_BRAND, isInstance, type TrainingState } from './tree/tree-instance.js';
import { shardUnit, syncBuffers } from './unit/initial-values.js';
import { ownerOf, ownParameters, requireEachInOneUnit } from './unit/own-parameters.js';
import { planUnits } from './unit/plan-units.js';
import { agreeOnGeneration, homeStepsOf, occupyUnits, rankPrefix } from './unit/residence.js';
import { ShardedUnit, type UnitContext } from './unit/sharded-unit.js';
import { SharedParameters } from './unit/shared-parameters.js';
import { storedInstance } from './unit/stored-instance.js';
import type { DivideFactors } from './unit/unit-gradient.js';
import { openLinks } from './unit/unit-links.js';
import { innerModule } from './wrap/inner-module.js';

type Tree = FsdpTree<FullyShardedDataParallel>;

// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class FullyShardedDataParallel<
  Args extends readonly any[] = any,
  Output = any,
  Inner extends Module<Args, Output> = Module<Args, Output>,
> extends Module<Args, Output> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  readonly [FSDP_BRAND] = true;
  /** What it wraps, with its own type: the way to that module's properties. */
  readonly module: Inner;
  readonly processGroup: ProcessGroup;
  /** For errors and traces. */
  readonly name: string;
  /** Its own flat parameters; none where inner instances hold all parameters. */
  readonly units: readonly ShardedUnit[];
  readonly #options: ResolvedFsdpOptions;
  readonly #shared: SharedParameters<FullyShardedDataParallel>;
  #tree: Tree | undefined;
  #stored: StoredModel | undefined;
  #state: TrainingState = 'idle';
  /** What a forward threw last that the other ranks know of. */
  #toldError: unknown;

  /**
   * @throws {FsdpConfigError} for contradicting options, and for parameters that were packed or are
   * f32 where computation is in 16 bits without masters
   */
  constructor(module: Inner & Module<Args, Output>, options: FsdpOptions) {
    super(module.device);
    this.module = this.child('module', module);
    this.#options = resolveOptions(options);
    this.name = options.name ?? 'fsdp';
    this.processGroup = options.processGroup;
    const { flattenParameters, masterDType } = this.#options;
    const { own, owners } = ownParameters(module, masterDType);
    this.#shared = new SharedParameters(owners as ReadonlySet<FullyShardedDataParallel>);
    for (const owner of this.#shared.owners) {
      owner.#shared.addUser(this);
    }
    const context: UnitContext = {
      ...this.#options,
      device: module.device,
      group: options.processGroup,
      owner: this,
      isSyncing: () => this.#tree?.isSyncing,
      onContribution: (pass) => this.#noteContribution(pass),
      onFinal: (unit) => this.#afterBackward(unit),
    };
    this.units = planUnits(own, flattenParameters, this.name).map(
      (plan) => new ShardedUnit(plan.name, plan.parameters, context),
    );
  }

  override childPrefix(): string {
    return '';
  }

  get trainingState(): TrainingState {
    return this.#state;
  }

  /** The tree it belongs to, once a forward or another collective call has elected the root. */
  get tree(): Tree | undefined {
    return this.#tree;
  }

  get isRoot(): boolean {
    return this.#tree?.root === this;
  }

  /** Whether its full parameters are freed after forward. */
  get isResharding(): boolean {
    if (this.isRoot && this.#options.disableReshardOnRoot) {
      return false;
    }
    return this.#options.reshardAfterForward;
  }

  /** Defaults of stateDict's options. */
  get stateDictOptions(): ResolvedFsdpOptions['stateDict'] {
    return this.#options.stateDict;
  }

  /** What gradients are divided by around their reduction; set by setGradientDivideFactors. */
  get divideFactors(): DivideFactors {
    return this.#options.divide;
  }

  /** Over which shards are replicated; undefined without hybrid sharding. */
  get replicateGroup(): ProcessGroup | undefined {
    return this.#options.groups.replicateGroup;
  }

  /** Ranks that share its parameters, in shards or as replicas of them. */
  get numRanks(): number {
    return this.processGroup.worldSize * (this.replicateGroup?.worldSize ?? 1);
  }

  /** Whether this rank belongs to the first replica, which is the only one without replicateGroup. */
  get isFirstReplica(): boolean {
    return (this.replicateGroup?.rank ?? 0) === 0;
  }

  /** This rank among all that share a batch: those of its shards, replica by replica. */
  get batchRank(): number {
    const replica = this.#options.groups.replicateGroup?.rank ?? 0;
    return replica * this.processGroup.worldSize + this.processGroup.rank;
  }

  /** Whether this is rank 0 of the first replica. */
  get isFirstRank(): boolean {
    return this.processGroup.rank === 0 && this.isFirstReplica;
  }

  /** Whether ranks of `root` hold different parameters here (experts). */
  isLocalTo(root: FullyShardedDataParallel): boolean {
    return this.#options.noBroadcastOptimState ?? this.numRanks < root.numRanks;
  }

  // ---- forward and backward --------------------------------------------------------------------

  /** As any module's; the other ranks learn where a hook around the outermost forward throws. */
  override async call(...args: Args): Promise<Output> {
    try {
      return await super.call(...args);
    } catch (error) {
      const tree = this.#tree;
      const isOutermost = tree?.outermost === undefined && !this.device.isInBackward;
      const isTold = error instanceof FsdpError || error === this.#toldError;
      if (tree !== undefined && isOutermost && !isTold) {
        await tree.fail('forward', error);
      }
      throw error;
    }
  }

  override async forward(...args: Args): Promise<Output> {
    const before = this.#state;
    this.expectState('forward', ['idle', 'backwardPre', 'backwardPost']);
    this.#state = 'forward'; // at once: calls made from here on are refused
    const isRecomputing = this.device.isInBackward;
    const isInside = isRecomputing || this.#tree?.outermost !== undefined;
    const leave = isInside ? () => {} : occupyUnits(this.instances(), 'forward');
    let tree: Tree | undefined;
    let isOutermost = false;
    try {
      tree = isInside && this.#tree !== undefined ? this.#tree : await this.initialize();
      isOutermost = !isRecomputing && tree.outermost === undefined;
      if (isOutermost) {
        if (this.isRoot) {
          for (const each of tree.instances) {
            castBuffers(each.module, each.#options.bufferDType);
          }
        }
        tree.beginForward(this);
        this.device.random.separate(tree.root.batchRank);
      }
      if (this.units.length > 0) {
        await tree.scheduler.enter(this, isRecomputing ? 'backward' : 'forward');
      }
      await this.#shared.enter(tree, isRecomputing ? 'backward' : 'forward');
      this.#dropBeforeInputs(tree, args);
      const output = await this.module.call(
        ...castInputs(args, { ...this.#options, isRoot: this.isRoot }),
      );
      this.#state = before === 'backwardPost' ? 'backwardPre' : before;
      this.reshard();
      this.#shared.reshard();
      const kind = this.#hookOutput(tree, output);
      if (!isRecomputing) {
        if (this.units.length > 0) {
          tree.scheduler.leave(this, kind);
        }
        for (const owner of this.#shared.owners) {
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
      if (this.#state === 'forward') {
        this.#state = before === 'backwardPost' ? 'backwardPre' : before;
      }
    }
  }

  /** Frees its full parameters after forward, where it reshards and nobody else uses them now. */
  reshard(): void {
    if (this.isResharding && this.#state !== 'forward' && !this.#shared.isInUse) {
      this.drop();
    }
  }

  /**
   * Elects the root and opens the links of its tree; collective on the first call, and where instances
   * were put in since. Forward calls it, as does whatever else needs all ranks. Waits for calls made
   * before.
   * @throws {FsdpConfigError} where a parameter is not in exactly one flat parameter, and on all ranks
   * where they differ in instances or options
   */
  initialize(): Promise<Tree> {
    return CallQueue.inTurn(callQueuesOf(this.instances()), () => this.elect());
  }

  /** As initialize, for a call that has its turn already. */
  async elect(): Promise<Tree> {
    requireEachInOneUnit(this);
    const instances = this.instances();
    for (const steps of homeStepsOf(instances)) {
      await steps.rest(); // one that a store failed in is finished before anything is read
    }
    const known = this.#tree;
    for (const instance of instances) {
      if (instance.#state === 'idle') {
        instance.keepWrites();
      }
    }
    if (known !== undefined && instances.every((instance) => instance.#tree === known)) {
      return known;
    }
    const root = known?.root ?? this;
    if (root !== this && root.instances().includes(this)) {
      return root.elect();
    }
    await agreeOnInstances(this, (instance) =>
      comparedLines(instance, (instance as FullyShardedDataParallel).#options),
    );
    for (const instance of instances) {
      await instance.#open();
    }
    const { groups, syncModuleStates, residence } = this.#options;
    const isResumed = known === undefined && residence?.resume === true; // with each rank's own
    if (syncModuleStates && !isResumed) {
      await syncBuffers(this.module, groups);
    }
    const tree = new FsdpTree<FullyShardedDataParallel>(this, instances, this.#options);
    tree.isSyncing = known?.isSyncing ?? true;
    for (const instance of instances) {
      instance.#tree = tree;
    }
    return tree;
  }

  /** Opens the links of its units and shards them, once. */
  async #open(): Promise<void> {
    const { groups, residence } = this.#options;
    if (residence?.resume) {
      await agreeOnGeneration(residence, groups);
    }
    this.#stored ??= storedInstance(this, this.#options);
    try {
      await this.#stored?.open();
    } catch (error) {
      this.#tellOthers(error);
      throw error;
    }
    for (const unit of this.units) {
      unit.links ??= await openLinks(groups);
      try {
        await unit.home?.open(`${rankPrefix(groups)}${unit.name}`);
        await shardUnit(unit, groups, this.#options);
      } catch (error) {
        this.#tellOthers(error);
        throw error;
      }
    }
  }

  /** Others may wait for this rank's messages, of which no call takes the place. */
  #tellOthers(error: unknown): void {
    if (isLocalFailure(error)) {
      this.processGroup.abort(failureText('initialize', error));
    }
  }

  /** Frees its full parameters, and keeps what was written into them; nothing where they are absent. */
  drop(): void {
    this.keepWrites();
    for (const unit of this.units) {
      unit.drop();
    }
  }

  /** See ShardedUnit.keepWrites. */
  keepWrites(): void {
    for (const unit of this.units) {
      unit.keepWrites();
    }
  }

  /** This instance and those nested below it, outer first. */
  instances(): FullyShardedDataParallel[] {
    return this.namedModules().flatMap(([, module]) =>
      isInstance(module) ? [module as FullyShardedDataParallel] : [],
    );
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
    if (!tree.isInBackward) {
      await CallQueue.ended(callQueuesOf(tree.instances));
    }
    tree.beginPass(pass);
    this.expectState('backward', ['idle', 'backwardPre', 'backwardPost']);
    if (this.#state === 'idle') {
      this.#state = 'backwardPre';
    }
    for (const unit of this.units) {
      unit.gradient.sum.beginPass(pass);
    }
    try {
      await tree.agree();
      await this.#shared.enter(tree, 'backward');
      if (this.units.length > 0) {
        await tree.scheduler.enter(this, 'backward');
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
    if (
      tree.findsUnused ||
      this.#shared.hasUsers ||
      !this.device.isGradEnabled ||
      !this.units.some((unit) => unit.hasFrozen)
    ) {
      return;
    }
    this.device.beforeGradientOf(args, () => {
      if (this.#isDroppedAfterBackward) {
        this.drop();
      }
    });
  }

  get #isDroppedAfterBackward(): boolean {
    return this.#tree!.isSyncing || this.isResharding;
  }

  #noteContribution(pass: Pass): void {
    const tree = this.#tree;
    if (tree === undefined) {
      throw this.#stateError('backward', 'a forward before it');
    }
    tree.beginPass(pass);
    this.#state = 'backwardPost';
  }

  /** All gradients of its own are in: ship them, and free what no later node reads. */
  #afterBackward(unit: ShardedUnit): void {
    this.#tree!.reduceFinal(unit);
    // Where ranks come to different uses of it, one that is through keeps it as long as one that is
    // not: gathers are the same on all.
    if (this.#tree!.scheduler.isRequired(this)) {
      return;
    }
    if (!this.#isDroppedAfterBackward || unit.hasFrozen) {
      return;
    }
    unit.keepWrites();
    unit.drop();
  }

  /**
   * Uses a parameter that another instance shards, for a module that got it after this instance was
   * made; those it had then are found by themselves.
   * @throws {FsdpConfigError} where no other instance shards it
   */
  appendSharedParam(parameter: Tensor): void {
    this.expectState('appendSharedParam', ['idle']);
    const owner = ownerOf(parameter) as FullyShardedDataParallel | undefined;
    if (owner === undefined || owner === this) {
      throw new FsdpConfigError(
        `appendSharedParam: expected a parameter that another instance shards, got '${parameter.name || `[${parameter.shape.join(', ')}]`}'. Wrap the module that owns it first.`,
      );
    }
    this.#shared.addOwner(owner);
    owner.#shared.addUser(this);
  }

  // ---- accumulation ----------------------------------------------------------------------------

  /**
   * Runs `body` without reducing gradients: its backwards add up unsharded f32 gradients, which the
   * next backward outside reduces. Root only.
   * @throws {FsdpStateError} on an inner instance, or inside forward, backward or summon
   */
  async noSync<T>(body: () => T | Promise<T>): Promise<T> {
    const tree = await this.initialize();
    if (!this.isRoot) {
      throw this.#stateError('noSync', 'the root instance');
    }
    this.expectState('noSync', ['idle']);
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
   * Makes new initial values for all layers inside, as nn's resetParameters does; each rank keeps its
   * shard. Inside summonFullParams of this instance and those below it.
   * @throws {FsdpStateError} outside of that, and without the option allowResetParameters
   */
  resetParameters(options: { readonly seed?: number } = {}): void {
    if (!this.#options.allowResetParameters) {
      throw this.#stateError('resetParameters', 'the option allowResetParameters');
    }
    for (const instance of this.instances()) {
      instance.expectState('resetParameters', ['summonFullParams']);
    }
    resetParameters(this.module, { ...options, writesBack: true });
  }

  override toString(): string {
    return describeInstance(this, this.#options);
  }

  /** What console.log shows in Node. */
  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return this.toString();
  }

  // ---- states ----------------------------------------------------------------------------------

  /** @throws {FsdpStateError} unless the instance is in one of the states */
  assertState(...states: readonly TrainingState[]): void {
    this.expectState('assertState', states);
  }

  /** Enters or leaves summonFullParams; called by summonFullParams. */
  setSummoning(isSummoning: boolean): void {
    this.#state = isSummoning ? 'summonFullParams' : 'idle';
  }

  /** Called by the tree at the end of a backward, and after a failure, also of one inside summon. */
  becomeIdle(): void {
    if (this.#state !== 'summonFullParams') {
      this.#state = 'idle';
    }
  }

  protected override releaseOwned(): void {
    this.#stored?.close();
    for (const unit of this.units) {
      unit.dispose();
    }
  }

  /** As assertState, in the name of a call. */
  expectState(operation: string, states: readonly TrainingState[]): void {
    if (!states.includes(this.#state)) {
      throw this.#stateError(operation, `state ${states.join(' or ')}`);
    }
  }

  #stateError(operation: string, expected: string): FsdpStateError {
    const { rank, worldSize } = this.processGroup;
    return new FsdpStateError(
      `rank ${rank}/${worldSize} ${operation}: expected ${expected}, got ${this.isRoot ? 'root' : 'inner'} instance '${this.name}' in state ${this.#state}. Forward and backward cannot run inside summonFullParams, nor other calls inside them.`,
    );
  }
}
