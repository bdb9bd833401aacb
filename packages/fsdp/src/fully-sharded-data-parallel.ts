// Wraps a module so that each rank holds a shard of its parameters, gradients and optimizer state
// (ZeRO-3; fairscale's FullyShardedDataParallel). Wrap inner modules first: an outer instance takes
// the parameters that are left. Create it before or after the optimizer, alike on all ranks.

import type { ProcessGroup } from '@shardweave/collectives';
import { isModule, joinPath, Module } from '@shardweave/nn';
import { cast, type Device, isFloat, type Pass, type Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError, FsdpStateError } from './errors.js';
import { FsdpTree } from './fsdp-tree.js';
import { mapTensors } from './map-tensors.js';
import { type FsdpOptions, type ResolvedFsdpOptions, resolveOptions } from './options.js';
import { ShardedUnit, type UnitParameter } from './sharded-unit.js';

/** What an instance is doing. Public calls other than forward and backward need 'idle'. */
export type TrainingState =
  | 'idle'
  | 'forward'
  | 'backwardPre' // its full parameters are back, gradients not yet all in
  | 'backwardPost' // a gradient of its own has come
  | 'summonFullParams';

const BRAND = Symbol.for('@shardweave/fsdp/FullyShardedDataParallel');

export function isFsdp(value: unknown): value is FullyShardedDataParallel {
  return isModule(value) && BRAND in value;
}

// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class FullyShardedDataParallel<
  Args extends readonly any[] = any,
  Output = any,
> extends Module<Args, Output> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  readonly [BRAND] = true;
  readonly module: Module<Args, Output>;
  readonly processGroup: ProcessGroup;
  /** The parameters of its own; undefined where inner instances hold them all. */
  readonly unit: ShardedUnit | undefined;
  readonly #options: ResolvedFsdpOptions;
  readonly #reduceGroup: ProcessGroup | undefined;
  #tree: FsdpTree | undefined;
  #state: TrainingState = 'idle';

  /**
   * @throws {FsdpConfigError} for contradicting options, inner instances of another process group,
   * and parameters that are not f32 or belong to another flat tensor (shared with a wrapped module)
   */
  constructor(module: Module<Args, Output>, options: FsdpOptions) {
    super(module.device);
    this.module = this.child('module', module);
    this.processGroup = options.processGroup;
    this.#reduceGroup = options.processGroupReduceScatter;
    this.#options = resolveOptions(options);
    if (this.instances().some(({ processGroup }) => processGroup !== this.processGroup)) {
      throw new FsdpConfigError(
        'fsdp: expected the processGroup of the instances inside, got another. All instances of a tree share one group object.',
      );
    }
    const parameters = leftParameters(module);
    if (parameters.length === 0) return;
    const { computeDType, reduceDType, predivide, postdivide } = this.#options;
    this.unit = new ShardedUnit(options.name ?? 'fsdp', parameters, {
      device: module.device,
      group: options.processGroup,
      computeDType,
      reduceDType,
      predivide,
      postdivide,
    });
    for (const { tensor } of parameters) tensor.gradSink = this.#gradSink(this.unit);
  }

  override childPrefix(): string {
    return '';
  }

  get trainingState(): TrainingState {
    return this.#state;
  }

  /** The tree it belongs to, once a forward or another collective call has elected the root. */
  get tree(): FsdpTree | undefined {
    return this.#tree;
  }

  get isRoot(): boolean {
    return this.#tree?.root === this;
  }

  /** Whether its full parameters are freed after forward. */
  get isResharding(): boolean {
    if (this.isRoot && this.#options.disableReshardOnRoot) return false;
    return this.#options.reshardAfterForward;
  }

  // ---- forward and backward --------------------------------------------------------------------

  override async forward(...args: Args): Promise<Output> {
    const tree = await this.initialize();
    const before = this.#state;
    this.#expectState('forward', ['idle', 'backwardPre', 'backwardPost']);
    const isRecomputing = this.device.isInBackward;
    const isOutermost = this.isRoot || (!isRecomputing && tree.root.trainingState !== 'forward');
    this.#state = 'forward';
    try {
      if (this.isRoot && !isRecomputing) tree.beginForward();
      if (this.unit !== undefined) {
        await tree.scheduler.enter(this.unit, isRecomputing ? 'backward' : 'forward');
      }
      const output = await this.module.call(...this.#castInputs(args));
      if (this.isResharding) this.unit?.drop();
      // What was gathered ahead and not used would be stale after a step or a load.
      if (isOutermost && !isRecomputing) await tree.scheduler.settle();
      if (this.device.isGradEnabled) {
        const hook = (pass: Pass) => this.#beforeBackward(tree, pass);
        const numHooked = this.device.beforeGradientOf(output, hook);
        if (numHooked === 0 && this.unit !== undefined) tree.scheduler.skipInBackward(this.unit);
      }
      return output;
    } catch (error) {
      if (isOutermost) tree.reset();
      throw error;
    } finally {
      this.#state = before === 'backwardPost' ? 'backwardPre' : before;
    }
  }

  /**
   * Elects the root and opens the links of its tree, once; collective on the first call. Forward
   * calls it, as does whatever else needs all ranks.
   */
  async initialize(): Promise<FsdpTree> {
    if (this.#tree !== undefined) return this.#tree;
    const instances = this.instances();
    const group = this.processGroup;
    const reduceGroup = this.#reduceGroup ?? (group.worldSize === 1 ? group : await group.split(0));
    const tree = new FsdpTree(this, instances, {
      reduceGroup,
      gatherCapBytes: this.#options.gatherCapBytes,
    });
    for (const instance of instances) instance.#tree = tree;
    return tree;
  }

  /** This instance and those nested below it, outer first. */
  instances(): FullyShardedDataParallel[] {
    return this.namedModules().flatMap(([, module]) => (isFsdp(module) ? [module] : []));
  }

  async #beforeBackward(tree: FsdpTree, pass: Pass): Promise<void> {
    tree.beginPass(pass);
    this.#expectState('backward', ['idle', 'backwardPre', 'backwardPost']);
    if (this.#state === 'idle') this.#state = 'backwardPre';
    if (this.unit === undefined) return;
    this.unit.beginPass(pass);
    await tree.scheduler.enter(this.unit, 'backward');
  }

  #gradSink(unit: ShardedUnit) {
    return {
      accept: (leaf: Tensor, gradient: Tensor, pass: Pass): void => {
        const tree = this.#tree;
        if (tree === undefined) throw this.#stateError('backward', 'a forward before it');
        tree.beginPass(pass);
        this.#state = 'backwardPost';
        unit.accept(leaf, gradient, { isSyncing: tree.isSyncing });
      },
      final: (_leaf: Tensor, pass: Pass): void => {
        if (unit.noteFinal(pass)) this.#afterBackward(unit);
      },
      clear: (leaf: Tensor): void => unit.clear(leaf),
    };
  }

  /** All gradients of its own are in: ship them, and free what no later node reads. */
  #afterBackward(unit: ShardedUnit): void {
    const { isSyncing } = this.#tree!;
    if (isSyncing) unit.startReduce();
    const hasFrozen = unit.parameters.some(({ tensor }) => !tensor.requiresGrad);
    if ((isSyncing || this.isResharding) && !hasFrozen) unit.drop();
  }

  // ---- accumulation ----------------------------------------------------------------------------

  /**
   * Runs `body` without reducing gradients: its backwards add up unsharded f32 gradients, which the
   * next backward outside reduces. Root only.
   * @throws {FsdpStateError} on an inner instance, or inside forward, backward or summon
   */
  async noSync<T>(body: () => T | Promise<T>): Promise<T> {
    const tree = await this.initialize();
    if (!this.isRoot) throw this.#stateError('noSync', 'the root instance');
    this.#expectState('noSync', ['idle']);
    const before = tree.isSyncing;
    tree.isSyncing = false;
    try {
      return await body();
    } finally {
      tree.isSyncing = before;
    }
  }

  // ---- states ----------------------------------------------------------------------------------

  /** @throws {FsdpStateError} unless the instance is in one of the states */
  assertState(...states: readonly TrainingState[]): void {
    this.#expectState('assertState', states);
  }

  /** Enters or leaves summonFullParams; called by summonFullParams. */
  setSummoning(isSummoning: boolean): void {
    this.#state = isSummoning ? 'summonFullParams' : 'idle';
  }

  /** Called by the tree at the end of a backward. */
  becomeIdle(): void {
    this.#state = 'idle';
  }

  protected override releaseOwned(): void {
    this.unit?.dispose();
  }

  #expectState(operation: string, states: readonly TrainingState[]): void {
    if (!states.includes(this.#state))
      throw this.#stateError(operation, `state ${states.join(' or ')}`);
  }

  #stateError(operation: string, expected: string): FsdpStateError {
    const { rank, worldSize } = this.processGroup;
    return new FsdpStateError(
      `rank ${rank}/${worldSize} ${operation}: expected ${expected}, got ${this.isRoot ? 'root' : 'inner'} instance '${this.unit?.name ?? 'fsdp'}' in state ${this.#state}. Forward and backward cannot run inside summonFullParams, nor other calls inside them.`,
    );
  }

  /** The root of a mixed-precision tree brings float inputs to its compute dtype, with autograd. */
  #castInputs(args: Args): Args {
    const { isMixed, computeDType } = this.#options;
    if (!isMixed || !this.isRoot) return args;
    return mapTensors(args, (tensor) =>
      isFloat(tensor.dtype) ? cast(tensor, computeDType) : tensor,
    );
  }
}

/**
 * The parameters below a module that no inner instance has taken.
 * @throws {FsdpConfigError} for one that cannot be sharded here
 */
function leftParameters(module: Module): UnitParameter[] {
  const device: Device = module.device;
  const paths = new Map<Tensor, string>();
  collectOutsideInstances(module, '', paths);
  return [...paths].map(([tensor, path]) => {
    if (tensor.piece !== undefined) {
      throw new FsdpConfigError(
        `fsdp: expected parameters of no other flat tensor, got '${path}', which was packed or belongs to another wrapped module. Modules that share a parameter go into one wrapped module.`,
      );
    }
    if (tensor.dtype !== 'f32' || tensor.device !== device) {
      throw new FsdpConfigError(
        `fsdp: expected f32 parameters on the module's device, got ${tensor.dtype} '${path}'. Masters are f32; computeDType sets what is computed in.`,
      );
    }
    return { path, tensor };
  });
}

/** Finds parameters with their first paths; stops at inner instances. */
function collectOutsideInstances(module: Module, path: string, found: Map<Tensor, string>): void {
  if (isFsdp(module)) return;
  for (const [name, tensor] of module.ownParameters()) {
    if (!found.has(tensor)) found.set(tensor, joinPath(path, name));
  }
  for (const [name, child] of module.children()) {
    collectOutsideInstances(child, joinPath(path, module.childPrefix(name)), found);
  }
}
