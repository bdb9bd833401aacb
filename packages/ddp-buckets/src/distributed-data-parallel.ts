// Wraps a module so that all ranks train one model: each rank holds all parameters, and gradients
// are averaged in buckets while backward still runs (apex's DistributedDataParallel, with the
// additions of PyTorch's Reducer). Create it alike on all ranks, before or after the optimizer.

import type { ProcessGroup } from '@shardweave/collectives';
import { type GradScaler, Module, type Optimizer } from '@shardweave/nn';
import {
  flatsOf,
  HELD,
  type HeldBy,
  markCopies,
  masterOf,
  packedGradientOf,
} from '@shardweave/nn/flat';
import type { Pass, Tensor } from '@shardweave/tensor-core';
import { BUCKET_DTYPES } from './bucket-layout.js';
import type { ActiveParameter } from './buckets/bucket.js';
import { GradientSync } from './buckets/gradient-sync.js';
import { describeParameter, PlanKeeper } from './buckets/plan-keeper.js';
import { DdpConfigError, DdpStateError } from './errors.js';
import { followOptimizers, requireStepped } from './follow-optimizers.js';
import {
  type DdpOptions,
  describeOptions,
  type ResolvedDdpOptions,
  resolveOptions,
} from './options.js';
import { requireAgreement } from './ranks/agreement.js';
import { type BroadcastOptions, broadcastTensors } from './ranks/broadcast-tensors.js';
import { heldByReplica } from './ranks/held-replicas.js';
import { WrapperLanes } from './ranks/wrapper-lanes.js';
import type { RecordedForward } from './recorded-forwards.js';
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
  readonly #options: ResolvedDdpOptions;
  readonly #lanes: WrapperLanes;
  readonly #keeper: PlanKeeper;
  readonly #sync: GradientSync;
  /** The parameters and buffers that have been made equal on all ranks. */
  readonly #shared = new WeakSet<Tensor>();
  #opening: Promise<void> | undefined;
  #numericClasses: readonly string[] = [];

  /**
   * Takes over the parameters' gradients. Nothing is sent before initialize or the first forward.
   * @throws {DdpConfigError} for options that contradict each other, were removed or are unknown,
   * and for parameters that are not f32, f16 or bf16, or that are sharded, packed or wrapped
   * already
   */
  constructor(module: Module<Args, Output>, options: DdpOptions) {
    super(module.device);
    this.module = this.child('module', module);
    this.processGroup = options.processGroup;
    this.#options = resolveOptions(options);
    this.#lanes = new WrapperLanes(options.processGroup, this.#options);
    this.#keeper = new PlanKeeper({
      device: this.device,
      options: this.#options,
      lanes: this.#lanes,
      trainable: () => this.#trainable(),
      packedOf: (leaf) => this.#sync.packedOf(leaf),
    });
    this.#sync = new GradientSync(this.device, this.#options, {
      lanes: this.#lanes,
      keeper: this.#keeper,
    });
    const named = module.namedParameters();
    for (const [path, tensor] of named) {
      this.#requirePlain(path, tensor);
    }
    this.#requireTriggers(named.map(([, tensor]) => tensor));
    for (const [, tensor] of named) {
      this.#sync.takeOver(tensor);
    }
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
    return this.#keeper.plan?.active.map(({ tensor }) => tensor) ?? [];
  }

  /** The paths of the parameters of each bucket, in the order of reductions. */
  get buckets(): readonly (readonly string[])[] {
    return (
      this.#keeper.plan?.buckets.map(({ parameters }) => parameters.map(({ path }) => path)) ?? []
    );
  }

  /** Whether the buckets follow the order in which gradients came on rank 0. */
  get isLearned(): boolean {
    return this.#keeper.plan?.isLearned ?? false;
  }

  /**
   * The flat buffer of each bucket after the last backward, with retainAllreduceBuffers. Gradients
   * are views of it, and it is freed with them.
   */
  get allreduceBuffers(): readonly (Tensor | undefined)[] {
    return this.#sync.buffers;
  }

  /**
   * The numeric classes of all ranks, each once, sorted. With several classes the optimizers' steps
   * differ in the last bits: syncParameters with `onlyTrained` makes the weights equal again after
   * a step, and clipGradNorm of nn clips alike on all ranks. Empty on a single rank, and
   * before initialize.
   */
  get numericClasses(): readonly string[] {
    return this.#numericClasses;
  }

  /**
   * The groups that buckets take in turn; by default processGroup alone. Empty on a single rank.
   */
  get communicators(): readonly ProcessGroup[] {
    return [...this.#lanes.all];
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
    this.#opening ??= this.#lanes.inOpening(() => this.#open());
    return this.#opening;
  }

  async #open(): Promise<void> {
    const group = this.processGroup;
    if (group.worldSize > 1) {
      const paths = new Map(this.module.namedParameters().map(([path, tensor]) => [tensor, path]));
      const lines = describeOptions(this.#options, (parameter) => paths.get(parameter)!);
      const advice = 'Wrap with the same options on all ranks.';
      const beside = await this.device.numericClass();
      const options = { what: 'options', advice, beside } as const;
      this.#numericClasses = await requireAgreement(group, lines, options);
    }
    await this.#share(group, this.#state(), 'parameters and buffers');
    await this.#keeper.open();
    await this.#lanes.open();
  }

  /**
   * Checks that tensors are equal over ranks in path, dtype and shape, and makes their values
   * equal.
   */
  async #share(
    group: ProcessGroup,
    tensors: readonly ActiveParameter[],
    what: string,
  ): Promise<void> {
    if (group.worldSize > 1) {
      const advice = 'Build, wrap and freeze the model alike on all ranks.';
      await requireAgreement(group, tensors.map(describeParameter), { what, advice });
      const list = tensors.map(({ tensor }) => tensor);
      await broadcastMasters(group, list, { root: 0, tag: `ddp ${what}` });
    }
    for (const { tensor } of tensors) {
      this.#shared.add(tensor);
    }
  }

  /**
   * Shares layers that were added to the module later, or that replaced others: rank 0's values go
   * to all ranks.
   */
  async #shareAdded(): Promise<void> {
    const added = this.#state().filter(({ tensor }) => !this.#shared.has(tensor));
    if (added.length === 0) {
      return;
    }
    for (const [path, tensor] of this.module.namedParameters()) {
      if (!this.#shared.has(tensor)) {
        this.#takeOver(path, tensor);
      }
    }
    if (this.#sync.uneven.isOpen) {
      const { rank, worldSize } = this.processGroup;
      throw new DdpStateError(
        `rank ${rank}/${worldSize} ddp forward: expected the same layers from the begin of join to its end, got ${added[0]!.path} in between. Add layers outside join.`,
      );
    }
    if (this.processGroup.worldSize === 1) {
      return this.#share(this.processGroup, added, '');
    }
    await this.#lanes.inTurn((group) => this.#share(group, added, 'added parameters and buffers'));
  }

  /**
   * Sends the parameters and buffers of rank `root` (default 0) to all ranks, for instance after
   * that rank has loaded them. With `onlyTrained` it sends only the parameters that a step changes.
   * Collective.
   */
  async syncParameters(
    options: { readonly root?: number; readonly onlyTrained?: boolean } = {},
  ): Promise<void> {
    const { root = 0, onlyTrained = false } = options;
    const tensors = (onlyTrained ? this.#trainable() : this.#state()).map(({ tensor }) => tensor);
    await this.#broadcast(tensors, { root, tag: 'ddp parameters' });
  }

  /** Sends the buffers of rank `root` (default 0) to all ranks. Collective. */
  async syncBuffers(options: { readonly root?: number } = {}): Promise<void> {
    await this.#syncBuffers({ root: options.root ?? 0, identity: 'ddp buffers' });
  }

  async #syncBuffers(options: { readonly root: number; readonly identity: string }): Promise<void> {
    const tensors = this.module.namedBuffers().map(([, tensor]) => tensor);
    await this.#broadcast(tensors, { ...options, tag: 'ddp buffers' });
  }

  async #broadcast(tensors: readonly Tensor[], options: BroadcastOptions): Promise<void> {
    this.#requireIdle(options.tag);
    await this.initialize();
    if (this.processGroup.worldSize === 1) {
      return;
    }
    await this.#lanes.inTurn((group) => broadcastMasters(group, tensors, options));
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
        await this.#lanes.tellOthers('ddp forward', error);
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
    if (this.isTraining && this.#options.isBroadcastingBuffers) {
      const root = await this.#sync.uneven.announceBuffers();
      await this.#syncBuffers({ root, identity: this.#sync.buffersIdentity });
    }
    if (!device.isGradEnabled) {
      return this.module.call(...args);
    }
    this.#sync.range('ddp: before forward', () => this.#sync.noteForward());
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
        this.#sync.noteReached(recorded);
      }
      this.#sync.beginPass(pass);
    });
    if (numNodes === 0 && recorded !== undefined) {
      this.#sync.noteReached(recorded);
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
    this.#requireIdle('noSync');
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
    this.#requireIdle('disableAllreduce');
    this.#sync.isEnabled = false;
  }

  /**
   * Makes the next backward reduce, along with its own gradients, what has added up. Not allowed
   * inside a backward.
   */
  enableAllreduce(): void {
    this.#requireIdle('enableAllreduce');
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
    this.#requireIdle('join');
    requireStepped(options?.optimizers, this.#trainable());
    await this.initialize();
    await this.#shareAdded();
    if (this.processGroup.worldSize === 1) {
      await body();
      return this.syncParameters();
    }
    const root = await this.#sync.uneven.run(this.processGroup, {
      body,
      isScaledToActive: options.divideByInitialWorldSize === false,
      onFailure: (error) => this.#lanes.tellOthers('ddp join', error),
      onOut: () => this.#keeper.refresh(),
      onBackward: () => this.#sync.watchBackward(),
      onBuffers: (from) => this.#syncBuffers({ root: from, identity: this.#sync.buffersIdentity }),
    });
    await this.syncParameters({ root });
    const followed = { optimizers: options.optimizers, scalers: options.scalers ?? [] };
    const flats = flatsOf(this.module.parameters());
    await this.#lanes.inTurn((group) => followOptimizers(group, followed, { root, flats }));
  }

  protected override releaseOwned(): void {
    for (const tensor of this.module.parameters()) {
      this.#sync.giveBack(tensor);
    }
  }

  // ---- parameters ------------------------------------------------------------------------------

  /**
   * The parameters that are trained. It also takes over those that were added to the module later.
   */
  #trainable(): ActiveParameter[] {
    const found: ActiveParameter[] = [];
    for (const [path, tensor] of this.module.namedParameters()) {
      if (!tensor.requiresGrad || tensor.size === 0) {
        continue;
      }
      this.#takeOver(path, tensor);
      found.push({ path, tensor });
    }
    return found;
  }

  #takeOver(path: string, tensor: Tensor): void {
    if (tensor.gradSink === this.#sync) {
      return;
    }
    this.#requirePlain(path, tensor);
    this.#sync.takeOver(tensor);
  }

  /** All parameters and buffers with their paths. */
  #state(): ActiveParameter[] {
    const named = [...this.module.namedParameters(), ...this.module.namedBuffers()];
    return named.map(([path, tensor]) => ({ path, tensor }));
  }

  #requirePlain(path: string, tensor: Tensor): void {
    if (!(BUCKET_DTYPES as readonly string[]).includes(tensor.dtype)) {
      throw new DdpConfigError(
        `ddp: expected parameters of ${BUCKET_DTYPES.join(', ')}, got ${tensor.dtype} '${path}'. No device here computes in f64; keep such values in f32, or as buffers.`,
      );
    }
    const isPacked = packedGradientOf(tensor) !== undefined;
    if (!isPacked && (tensor.piece !== undefined || tensor.gradSink !== undefined)) {
      throw new DdpConfigError(
        `ddp: expected parameters whose gradients nobody else takes, got '${path}', which is sharded or wrapped already. Wrap the bare module or a packed one, once.`,
      );
    }
    if (isPacked && this.#options.isRetaining) {
      throw new DdpConfigError(
        `ddp: expected plain parameters with retainAllreduceBuffers, got '${path}', which is packed. Its gradient lies in its flat and can't be a view of a bucket; drop the option, or don't pack.`,
      );
    }
    if (tensor.device !== this.device) {
      throw new DdpConfigError(
        `ddp: expected all parameters on the module's device, got '${path}' on another. A rank has one device.`,
      );
    }
  }

  #requireTriggers(parameters: readonly Tensor[]): void {
    for (const trigger of this.#options.triggers) {
      if (parameters.includes(trigger)) {
        continue;
      }
      throw new DdpConfigError(
        `ddp: expected allreduceTriggerParams of the wrapped module, got '${trigger.name}' [${trigger.shape.join(', ')}]. Take them from module.parameters().`,
      );
    }
  }

  #requireIdle(operation: string): void {
    if (!this.#sync.isInBackward) {
      return;
    }
    const { rank, worldSize } = this.processGroup;
    throw new DdpStateError(
      `rank ${rank}/${worldSize} ${operation}: expected no backward under way, got one. Await backward first.`,
    );
  }
}

/** Sends the values of parameters and buffers from where they rest, and tells their copies. */
async function broadcastMasters(
  group: ProcessGroup,
  tensors: readonly Tensor[],
  options: BroadcastOptions,
): Promise<void> {
  await broadcastTensors(group, tensors.map(masterOf), options);
  if (group.rank !== options.root) {
    markCopies(tensors, options.tag);
  }
}
