// Wraps a module so that all ranks train one model: each rank holds all parameters, and gradients
// are averaged in buckets while backward still runs (apex's DistributedDataParallel, with the
// additions of PyTorch's Reducer). Create it alike on all ranks, before or after the optimizer.

import type { ProcessGroup } from '@shardweave/collectives';
import { type GradScaler, Module, type Optimizer } from '@shardweave/nn';
import { dealtGroups, flatsOf, HELD, type HeldBy, requireModule } from '@shardweave/nn/flat';
import type { Pass, Tensor } from '@shardweave/tensor-core';
import { FLAG, LIST, type OptionRules, optional, whole } from '@shardweave/tensor-core/options';
import { GradientSync } from './buckets/gradient-sync.js';
import { PlanKeeper } from './buckets/plan-keeper.js';
import { profiled } from './buckets/sync-cycle.js';
import { SyncCycles } from './buckets/sync-cycles.js';
import { WrappedParameters, type WrapperContext } from './buckets/wrapped-parameters.js';
import { checkOptions } from './check-options.js';
import { DdpConfigError, DdpStateError } from './errors.js';
import { followOptimizers, requireStepped } from './follow-optimizers.js';
import { type DdpOptions, type ResolvedDdpOptions, resolveOptions } from './options.js';
import type { BroadcastOptions } from './ranks/broadcast-tensors.js';
import { heldByReplica } from './ranks/held-replicas.js';
import { WrapperLanes } from './ranks/wrapper-lanes.js';
import type { RecordedForward } from './recorded-forwards.js';
import { SharedValues } from './shared-values.js';
import type { StepTimings } from './step-timings.js';

/**
 * What `join` makes equal on all ranks at its end beside the weights, and what sums are divided by
 * while some ranks have run out of inputs.
 */
export interface JoinOptions {
  /**
   * The optimizers that step in the body: their group options, step counts and state follow the
   * weights. The list is empty where the body steps by other means that remember nothing.
   */
  readonly optimizers: readonly Optimizer<object>[];
  /** The loss scalers that are updated in the body; they follow too. Default none. */
  readonly scalers?: readonly GradScaler[];
  /**
   * true: sums are divided by the number of all ranks. false: by the number of those that still
   * have inputs. Default true.
   */
  readonly divideByInitialWorldSize?: boolean;
}

/** The tag of buffers that are sent. */
const BUFFERS = 'ddp buffers';
const ROOT = optional(whole(0));
const FOLLOW_RULES = {
  optimizers: optional(LIST), // requireStepped says more of none
  scalers: optional(LIST),
};
const JOIN_RULES: OptionRules<JoinOptions> = {
  ...FOLLOW_RULES,
  divideByInitialWorldSize: optional(FLAG),
};

/**
 * Wraps a module so that backward adds up its gradients over ranks, bucket by bucket.
 * @example
 * ```ts
 * import { createMemoryGroup } from '@shardweave/collectives';
 * import { DistributedDataParallel } from '@shardweave/ddp-buckets';
 * import { AdamW, Gpt2 } from '@shardweave/nn';
 * import { Device, mean } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2 };
 * const ranks = createMemoryGroup(2).map(async (processGroup, rank) => {
 *   const device = new Device(backend);
 *   const model = new DistributedDataParallel(new Gpt2(device, config), { processGroup });
 *   const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
 *   await device.scope(async () => {
 *     const ids = device.tensor(Int32Array.of(1, 2, 3, 4), [1, 4]);
 *     const targets = device.tensor(Int32Array.of(2, 3, 4, 5 + rank), [1, 4]);
 *     await mean(await model.call(ids, { targets })).backward();
 *     await optimizer.step();
 *     optimizer.zeroGrad();
 *   });
 *   if (rank === 0) console.log(model.parameters().length); // logs 16
 *   await processGroup.close();
 * });
 * await Promise.all(ranks);
 * await backend.dispose();
 * ```
 */
// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class DistributedDataParallel<
  Args extends readonly any[] = any,
  Output = any,
> extends Module<Args, Output> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  readonly module: Module<Args, Output>;
  readonly processGroup: ProcessGroup;
  readonly #wrapper: WrapperContext;
  readonly #sync: GradientSync;
  readonly #values: SharedValues;

  /**
   * Takes over the parameters' gradients. Nothing is sent before initialize or the first forward.
   * @throws {DdpConfigError} for options that contradict each other, were removed or are unknown,
   * and for parameters that are not f32, f16 or bf16, or that are sharded, packed or wrapped
   * already
   */
  constructor(module: Module<Args, Output>, options: DdpOptions) {
    requireModule('ddp', module, DdpConfigError);
    const resolved = resolveOptions(options);
    super(module.device);
    this.module = this.child('module', module);
    this.processGroup = options.processGroup;
    this.#wrapper = {
      device: this.device,
      options: resolved,
      lanes: new WrapperLanes(options.processGroup, resolved),
      parameters: new WrappedParameters(module, resolved),
    };
    const keeper = new PlanKeeper(this.#wrapper);
    this.#sync = new GradientSync(this.#wrapper, new SyncCycles(this.#wrapper, keeper));
    this.#values = new SharedValues(this.#wrapper, keeper);
    this.#wrapper.parameters.takeOver(this.#sync);
    if (!module.isTraining) {
      this.eval(); // a new module is in training mode
    }
  }

  override childPrefix(): string {
    return '';
  }

  /**
   * How the functions of nn reach what all ranks hold.
   * @internal
   */
  get [HELD](): HeldBy {
    return heldByReplica(this);
  }

  /**
   * The parameters whose gradients are reduced, in the module's order; empty before the first
   * forward.
   */
  get activeParams(): readonly Tensor[] {
    return this.#sync.cycles.keeper.plan?.active.map(({ tensor }) => tensor) ?? [];
  }

  /** The paths of the parameters of each bucket, in the order of reductions. */
  get buckets(): readonly (readonly string[])[] {
    return (
      this.#sync.cycles.keeper.plan?.buckets.map(({ parameters }) =>
        parameters.map(({ path }) => path),
      ) ?? []
    );
  }

  /** Whether the buckets follow the order in which gradients came on rank 0. */
  get isLearned(): boolean {
    return this.#sync.cycles.keeper.plan?.isLearned ?? false;
  }

  /**
   * The flat buffer of each bucket after the last backward, with retainAllreduceBuffers. Gradients
   * are views of it, and it is freed with them.
   */
  get allreduceBuffers(): readonly (Tensor | undefined)[] {
    return this.#sync.cycles.buffers;
  }

  /**
   * The numeric classes of all ranks, each once, sorted. With several classes the optimizers' steps
   * differ in the last bits: syncParameters with `onlyTrained` makes the weights equal again after
   * a step, and clipGradNorm of nn clips alike on all ranks. Empty on a single rank, and
   * before initialize.
   */
  get numericClasses(): readonly string[] {
    return this.#values.numericClasses;
  }

  /**
   * The groups that buckets take in turn; by default processGroup alone. Empty on a single rank.
   */
  get communicators(): readonly ProcessGroup[] {
    return [...this.#wrapper.lanes.all];
  }

  /**
   * With gradientGroups, the group that each of a step's calls runs on this rank, in order;
   * undefined stands for an empty call, of no rows, which takes part and gives nothing. All ranks
   * make as many: 8 groups over 3 ranks are 0, 1, 2 and 3, 4, 5 and 6, 7, undefined.
   */
  get groupCalls(): readonly (number | undefined)[] {
    const { gradientGroups, groupCounts } = this.#wrapper.options;
    return gradientGroups === undefined
      ? []
      : dealtGroups(gradientGroups, this.processGroup, groupCounts);
  }

  /** The times of the last step that had a reduction. */
  get timings(): StepTimings | undefined {
    return this.#sync.timings;
  }

  // ---- starting --------------------------------------------------------------------------------

  /**
   * Checks that the ranks' options are equal, and their parameters in path, dtype and shape; then
   * sends rank 0's parameters and buffers to all. Collective, once; the first forward calls it.
   * Wrappers of one group take turns.
   * @throws {DdpStructureError} on every rank, where options or models differ
   */
  initialize(): Promise<void> {
    return this.#values.initialize();
  }

  /**
   * Shares layers that were added to the module later, or that replaced others: rank 0's values go
   * to all ranks.
   */
  async #shareAdded(): Promise<void> {
    const { added } = this.#values;
    if (added.length === 0) {
      return;
    }
    this.#wrapper.parameters.takeAdded();
    if (this.#sync.cycles.uneven.isOpen) {
      const { rank, worldSize } = this.processGroup;
      throw new DdpStateError(
        `rank ${rank}/${worldSize} ddp forward: expected the same layers from the begin of join to its end, got ${added[0]!.path} in between. Add layers outside join.`,
      );
    }
    await this.#values.share(added);
  }

  /**
   * Sends the parameters and buffers of rank `root` (default 0) to all ranks, for instance after
   * that rank has loaded them. With `onlyTrained` it sends only the parameters that a step changes.
   * Collective.
   */
  async syncParameters(
    options: { readonly root?: number; readonly onlyTrained?: boolean } = {},
  ): Promise<void> {
    checkOptions('ddp.syncParameters', options, { root: ROOT, onlyTrained: optional(FLAG) });
    const { root = 0, onlyTrained = false } = options;
    const all = onlyTrained ? this.#wrapper.parameters.trained() : this.#values.all;
    const tensors = all.map(({ tensor }) => tensor);
    await this.#broadcast(tensors, { root, tag: 'ddp parameters' });
  }

  /**
   * Makes the optimizers' group options, step counts and state, and the loss scalers, equal to
   * those of rank `root` (default 0). A rank with the same step counts keeps its own. Collective.
   * @throws {DdpConfigError} where a trained parameter is in none of the optimizers
   */
  async syncOptimizers(
    options: Pick<JoinOptions, 'optimizers' | 'scalers'> & { readonly root?: number },
  ): Promise<void> {
    const operation = 'ddp.syncOptimizers';
    checkOptions(operation, options ?? {}, { ...FOLLOW_RULES, root: ROOT });
    requireIdle(operation, this.#sync, this.processGroup);
    requireStepped(operation, options?.optimizers, this.#wrapper.parameters.trained());
    await this.initialize();
    await follow(this.#wrapper, options, options.root ?? 0);
  }

  /** Sends the buffers of rank `root` (default 0) to all ranks. Collective. */
  async syncBuffers(options: { readonly root?: number } = {}): Promise<void> {
    checkOptions('ddp.syncBuffers', options, { root: ROOT });
    await this.#broadcast(buffersOf(this.module), { root: options.root ?? 0, tag: BUFFERS });
  }

  async #broadcast(tensors: readonly Tensor[], options: BroadcastOptions): Promise<void> {
    requireIdle(options.tag, this.#sync, this.processGroup);
    await this.initialize();
    await this.#values.broadcast(tensors, options);
  }

  // ---- forward ---------------------------------------------------------------------------------

  /**
   * Calls the module as any other. Where a forward whose graph is recorded fails, or a hook around
   * it, the other ranks are told: now or later they wait for the backward of this one.
   */
  override async call(...args: Args): Promise<Output> {
    const { isGradEnabled, isInBackward } = this.device;
    try {
      return await super.call(...args);
    } catch (error) {
      if (isGradEnabled && !isInBackward) {
        await this.#wrapper.lanes.tellOthers('ddp forward', error);
      }
      throw error;
    }
  }

  override async forward(...args: Args): Promise<Output> {
    await this.initialize();
    const { device } = this;
    const isRecomputing = device.isInBackward;
    if (isRecomputing) {
      return this.#record(args, undefined);
    }
    device.random.separate(this.processGroup.rank);
    await this.#shareAdded();
    if (this.isTraining && this.#wrapper.options.isBroadcastingBuffers) {
      const root = await this.#sync.cycles.uneven.announceBuffers();
      const identity = this.#sync.cycles.buffersIdentity;
      await this.#broadcast(buffersOf(this.module), { root, identity, tag: BUFFERS });
    }
    if (!device.isGradEnabled) {
      return this.module.call(...args);
    }
    profiled(this.#wrapper, 'ddp: before forward', () => this.#sync.noteForward());
    return this.#record(args, this.isTraining ? this.#sync.noteRecorded() : undefined);
  }

  async #record(args: Args, recorded: RecordedForward | undefined): Promise<Output> {
    const output = await this.module.call(...args);
    if (!this.device.isGradEnabled) {
      return output;
    }
    // A backward takes part even if it reaches no parameter here, because it may reach some on
    // other ranks.
    const numNodes = this.device.beforeGradientOf(output, (pass: Pass) => {
      if (recorded !== undefined) {
        this.#sync.cycles.noteReached(recorded);
      }
      this.#sync.beginPass(pass);
    });
    if (numNodes === 0 && recorded !== undefined) {
      this.#sync.cycles.noteReached(recorded);
    }
    return output;
  }

  // ---- when to reduce --------------------------------------------------------------------------

  /**
   * Runs `body` without reducing: its backwards add up on each rank, and the next backward after it
   * reduces the whole.
   * @throws {DdpStateError} inside a backward
   */
  async noSync<T>(body: () => T | Promise<T>): Promise<T> {
    requireIdle('noSync', this.#sync, this.processGroup);
    requireNoGroups('noSync', this.#wrapper.options);
    const before = this.#sync.isSyncing;
    this.#sync.isSyncing = false;
    try {
      return await body();
    } finally {
      this.#sync.isSyncing = before;
    }
  }

  /**
   * Stops reducing until enableAllreduce: gradients add up on each rank, in `grad`. Not allowed
   * inside a backward.
   */
  disableAllreduce(): void {
    requireIdle('disableAllreduce', this.#sync, this.processGroup);
    requireNoGroups('disableAllreduce', this.#wrapper.options);
    this.#sync.isEnabled = false;
  }

  /**
   * Makes the next backward reduce, along with its own gradients, what has added up. Not allowed
   * inside a backward.
   */
  enableAllreduce(): void {
    requireIdle('enableAllreduce', this.#sync, this.processGroup);
    this.#sync.isEnabled = true;
  }

  /**
   * Runs `body` (this rank's steps) where ranks have unequal numbers of steps: a rank that has run
   * out takes part in the others' reductions with zeros. At the end all ranks have the weights, the
   * buffers and the optimizer state of a rank that stepped last. Collective. It does not wait for
   * other collectives in `body`, and `body` must not change what is trained. An error in `body`
   * ends the job.
   * @throws {DdpConfigError} where a trained parameter is in none of the optimizers
   */
  async join(body: () => Promise<void>, options: JoinOptions): Promise<void> {
    requireIdle('join', this.#sync, this.processGroup);
    requireNoGroups('join', this.#wrapper.options);
    checkOptions('ddp.join', options ?? {}, JOIN_RULES);
    requireStepped('ddp join', options?.optimizers, this.#wrapper.parameters.trained());
    await this.initialize();
    await this.#shareAdded();
    if (this.processGroup.worldSize === 1) {
      await body();
      return this.syncParameters();
    }
    const root = await this.#sync.cycles.uneven.run(this.processGroup, {
      body,
      isScaledToActive: options.divideByInitialWorldSize === false,
      onFailure: (error) => this.#wrapper.lanes.tellOthers('ddp join', error),
      onOut: () => this.#sync.cycles.keeper.refresh(),
      onBackward: () => this.#sync.cycles.watch(),
      onBuffers: (from) => {
        const identity = this.#sync.cycles.buffersIdentity;
        return this.#broadcast(buffersOf(this.module), { root: from, identity, tag: BUFFERS });
      },
    });
    await this.syncParameters({ root });
    await follow(this.#wrapper, options, root);
  }

  /**
   * Frees all gradients and what the wrapper holds, and gives the module back, which trains on by
   * itself or in another wrapper: of a group with other ranks, for instance. It sends nothing, so a
   * job that has failed or ended does no harm. Not allowed inside a backward; this wrapper is of no
   * use afterwards.
   */
  unwrap(): Module<Args, Output> {
    requireIdle('unwrap', this.#sync, this.processGroup);
    this.zeroGrad();
    this.#wrapper.parameters.giveBack();
    return this.module;
  }

  protected override releaseOwned(): void {
    this.#wrapper.parameters.giveBack();
  }
}

async function follow(
  { lanes, parameters }: WrapperContext,
  { optimizers, scalers = [] }: Pick<JoinOptions, 'optimizers' | 'scalers'>,
  root: number,
): Promise<void> {
  if (lanes.group.worldSize > 1) {
    const flats = flatsOf(parameters.module.parameters());
    await lanes.inTurn((group) =>
      followOptimizers(group, { optimizers, scalers }, { root, flats }),
    );
  }
}

function buffersOf(module: Module): readonly Tensor[] {
  return module.namedBuffers().map(([, tensor]) => tensor);
}

/** @throws {DdpConfigError} for a call that steps of groups have no place for */
function requireNoGroups(operation: string, { gradientGroups }: ResolvedDdpOptions): void {
  if (gradientGroups !== undefined) {
    throw new DdpConfigError(
      `ddp ${operation}: expected no gradientGroups, got ${gradientGroups}. A step is as many backwards as groupCalls has, and the last one reduces all of them.`,
    );
  }
}

/** @throws {DdpStateError} inside a backward */
function requireIdle(
  operation: string,
  { isInBackward }: GradientSync,
  { rank, worldSize }: ProcessGroup,
): void {
  if (!isInBackward) {
    return;
  }
  throw new DdpStateError(
    `rank ${rank}/${worldSize} ${operation}: expected no backward under way, got one. Await backward first.`,
  );
}
