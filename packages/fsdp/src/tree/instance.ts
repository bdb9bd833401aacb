// What a wrapper is to the tree, to the units and to calls over whole models: its place among the
// other instances, what it is doing, and when its full parameters come and go. The wrapper is the
// module around it, with the methods that users call; it keeps this object under a symbol that the
// package does not export.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Module } from '@shardweave/nn';
import type { StoredModel } from '@shardweave/nn/flat';
import type { Pass, Tensor } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import { CallQueue } from '../ranks/call-queue.js';
import type { ResolvedFsdpOptions } from '../resolve-options.js';
import { shardUnit, syncBuffers } from '../unit/initial-values.js';
import { agreeOnStores } from '../unit/placement.js';
import { ShardedUnit, type UnitContext } from '../unit/sharded-unit.js';
import { openLinks } from '../unit/unit-links.js';
import { agreeOnInstances } from './agree-on-instances.js';
import { callQueuesOf } from './collective-call.js';
import { FsdpTree } from './fsdp-tree.js';
import { ownParameters, requireEachInOneUnit, requireStillFrozen } from './own-parameters.js';
import { planTables, planUnits } from './plan-units.js';
import { abortAlone } from './rank-failure.js';
import { requireOneDeal } from './require-one-deal.js';
import { SharedParameters } from './shared-parameters.js';
import { claimNames, flatKey, homeStepsOf, storedInstance } from './stored-instance.js';
import { tokenTables } from './token-tables.js';
import { StateMachine } from './training-state.js';
import { INSTANCE, type IsInstance, isInstance, type TreeInstance } from './tree-instance.js';

/** What the wrappers of one tree share. */
export type Tree = FsdpTree<Instance>;

/** What an instance is made of. */
export interface InstanceParts {
  readonly wrapper: Module;
  /** The module that the wrapper wraps. */
  readonly module: Module;
  readonly name: string;
  readonly options: ResolvedFsdpOptions;
}

export class Instance implements TreeInstance {
  readonly wrapper: Module;
  readonly module: Module;
  readonly name: string;
  readonly options: ResolvedFsdpOptions;
  readonly units: readonly ShardedUnit[];
  readonly shared: SharedParameters<Instance>;
  /** What its forwards have returned, which may be an input of its next one. */
  readonly outputs = new WeakSet<Tensor>();
  readonly activity = new StateMachine((...refused) => this.stateError(...refused));
  #tree: Tree | undefined;
  #stored: StoredModel | undefined;
  readonly #leaveStore: () => void;

  /**
   * Takes the parameters that no inner instance has.
   * @throws {FsdpConfigError} for a parameter that cannot be sharded here
   * @throws {OptimizerError} where its store has an instance of its name already
   */
  constructor({ wrapper, module, name, options }: InstanceParts) {
    this.wrapper = wrapper;
    this.module = module;
    this.name = name;
    this.options = options;
    const { own, owners } = ownParameters(module, options.masterDType);
    this.shared = new SharedParameters(owners as ReadonlySet<Instance>);
    for (const owner of this.shared.owners) {
      owner.shared.addUser(this);
    }
    const context: UnitContext = {
      options,
      owner: wrapper,
      isSyncing: () => this.#tree?.isSyncing,
      groups: () => this.#tree?.rounds?.sums,
      requireCall: () => this.#requireCall(),
      onContribution: (pass) => this.#noteContribution(pass),
      onFinal: (unit) => this.#afterBackward(unit),
      onFailed: (pass) => this.#tree?.watchPass(pass),
    };
    const tables = tokenTables(module, own, options);
    const others = own.filter((leaf) => !tables.includes(leaf));
    const plans = [
      ...planUnits(others, options.flattenParameters, name),
      ...planTables(tables, name),
    ];
    this.units = plans.map((plan) => new ShardedUnit(plan, context));
    this.#leaveStore = claimNames(this);
  }

  get processGroup(): ProcessGroup {
    return this.options.groups.processGroup;
  }

  get replicateGroup(): ProcessGroup | undefined {
    return this.options.groups.replicateGroup;
  }

  get tree(): Tree | undefined {
    return this.#tree;
  }

  get isRoot(): boolean {
    return this.#tree?.root === this;
  }

  get isResharding(): boolean {
    if (this.isRoot && this.options.disableReshardOnRoot) {
      return false;
    }
    return this.options.reshardAfterForward;
  }

  /** Whether the ranks of `root` hold different parameters in this instance (experts). */
  isLocalTo(root: Instance): boolean {
    const { noBroadcastOptimState, groups } = this.options;
    return noBroadcastOptimState ?? groups.numRanks < root.options.groups.numRanks;
  }

  instances(): Instance[] {
    return this.wrapper
      .namedModules()
      .flatMap(([, module]) => (isInstance(module) ? [instanceOf(module)] : []));
  }

  // ---- the tree --------------------------------------------------------------------------------

  /** Elects the root and opens the tree, after the calls made before have ended; see elect. */
  initialize(): Promise<Tree> {
    return CallQueue.inTurn(callQueuesOf(this.instances()), () => this.elect());
  }

  /**
   * Elects the root and opens the links of its tree. Collective on the first call, and whenever
   * instances were added since.
   * @throws {FsdpConfigError} where a parameter is not in exactly one flat parameter, and on all
   * ranks where they differ in instances or options
   */
  async elect(): Promise<Tree> {
    const instances = this.instances();
    requireEachInOneUnit(this, instances);
    requireStillFrozen(instances);
    for (const steps of homeStepsOf(instances)) {
      await steps.rest(); // a step in which a store failed is finished before anything is read
    }
    const known = this.#tree;
    for (const instance of instances) {
      if (instance.activity.state === 'idle') {
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
    requireOneDeal(this);
    const numericClasses = await agreeOnInstances(this);
    for (const instance of instances) {
      await instance.#open();
    }
    const { groups, syncModuleStates, placement } = this.options;
    const isResumed = known === undefined && placement?.resume === true; // with own buffers
    if (syncModuleStates && !isResumed) {
      await syncBuffers(this.module, groups);
    }
    const tree: Tree = new FsdpTree<Instance>(this, instances, numericClasses);
    tree.isSyncing = known?.isSyncing ?? true;
    for (const instance of instances) {
      instance.#tree = tree;
    }
    return tree;
  }

  /** Opens the links and homes of its units and shards them, once. */
  async #open(): Promise<void> {
    const { groups, placement } = this.options;
    if (placement?.isGiven) {
      await agreeOnStores(placement, groups, this.wrapper.device);
    }
    this.#stored ??= storedInstance(this);
    try {
      await this.#stored?.open();
      for (const unit of this.units) {
        unit.links ??= await openLinks(groups);
        await unit.values.home?.open(flatKey(unit, groups));
        await shardUnit(unit, groups, this.options);
      }
    } catch (error) {
      abortAlone(this.processGroup, 'initialize', error);
      throw error;
    }
  }

  // ---- full parameters -------------------------------------------------------------------------

  reshard(): void {
    if (this.isResharding && this.activity.state !== 'forward' && !this.shared.isInUse) {
      this.drop();
    }
  }

  /**
   * Frees the full parameters, where they are present, after what the program wrote into them is
   * kept.
   */
  drop(): void {
    this.keepWrites();
    for (const unit of this.units) {
      unit.full.drop();
    }
  }

  /** See FullCopy.keepWrites. */
  keepWrites(): void {
    for (const unit of this.units) {
      unit.full.keepWrites();
    }
  }

  /** Whether a backward frees the full parameters as soon as their gradients are final. */
  get isDroppedAfterBackward(): boolean {
    const { isSyncing, rounds } = this.#tree!;
    const isStepOver = isSyncing && rounds?.sums.present.isLast !== false;
    return isStepOver || this.isResharding;
  }

  #requireCall(): void {
    if (this.#tree?.outermost === undefined && !this.wrapper.device.isInBackward) {
      const { rank, worldSize } = this.processGroup;
      throw new FsdpStateError(
        `rank ${rank}/${worldSize} forward: expected a call of the wrapper '${this.name}', which all ranks make, got one of a module inside, which uses a token table in parts (vocabParallel). Call the wrapper.`,
      );
    }
  }

  #noteContribution(pass: Pass): void {
    const tree = this.#tree;
    if (tree === undefined) {
      throw this.stateError(
        'backward',
        'a forward of the wrapper, which fullyShard returns, before it',
      );
    }
    tree.beginPass(pass);
    this.activity.noteContribution();
  }

  /**
   * Called when all gradients of `unit` are in: starts their reduction, and frees the full
   * parameters where no later node reads them.
   */
  #afterBackward(unit: ShardedUnit): void {
    this.#tree!.reduceFinal(unit);
    // With findUnusedParameters another rank may still use this instance in the same backward.
    // Gathers are the same on all ranks, so a rank that is through keeps the parameters as long as
    // one that is not.
    if (this.#tree!.scheduler.isRequired(this)) {
      return;
    }
    if (!this.isDroppedAfterBackward || unit.hasFrozen) {
      return;
    }
    unit.full.keepWrites();
    unit.full.drop();
  }

  dispose(): void {
    this.#stored?.close();
    this.#leaveStore();
    for (const unit of this.units) {
      unit.dispose();
    }
  }

  /** The error of a call that can't begin now. */
  stateError(operation: string, expected: string): FsdpStateError {
    const { rank, worldSize } = this.processGroup;
    const { state } = this.activity;
    const running = state.startsWith('backward') ? 'backward' : state;
    const hint = state === 'idle' ? '' : ` Call it after that ${running}, not beside or inside it.`;
    return new FsdpStateError(
      `rank ${rank}/${worldSize} ${operation}: expected ${expected}, got ${this.isRoot ? 'root' : 'inner'} instance '${this.name}' in state ${state}.${hint}`,
    );
  }
}

/** The state that the package keeps for a wrapper. */
export function instanceOf(wrapper: IsInstance): Instance {
  return wrapper[INSTANCE] as Instance;
}
