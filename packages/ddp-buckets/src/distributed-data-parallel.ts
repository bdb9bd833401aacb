// Wraps a module so that all ranks train one model: each has all of its parameters, and gradients are
// averaged in buckets while backward still runs (apex's DistributedDataParallel, with what PyTorch's
// Reducer has beside it). Create it alike on all ranks, before or after the optimizer.

import type { ProcessGroup } from '@shardweave/collectives';
import { Module } from '@shardweave/nn';
import type { GradSink, Pass, Tensor } from '@shardweave/tensor-core';
import { requireAgreement } from './agreement.js';
import { broadcastTensors } from './broadcast-tensors.js';
import type { ActiveParameter } from './bucket.js';
import { BUCKET_DTYPES } from './bucket-layout.js';
import { DdpConfigError, DdpStateError } from './errors.js';
import { describeParameter, GradientSync } from './gradient-sync.js';
import { type DdpOptions, type ResolvedDdpOptions, resolveOptions } from './options.js';
import type { StepTimings } from './step-timings.js';

export interface JoinOptions {
  /** Divide by all ranks, or only by those that still have inputs. Default true: all. */
  readonly divideByInitialWorldSize?: boolean;
}

// biome-ignore-start lint/suspicious/noExplicitAny: as Module, plain it stands for any signature
export class DistributedDataParallel<
  Args extends readonly any[] = any,
  Output = any,
> extends Module<Args, Output> {
  // biome-ignore-end lint/suspicious/noExplicitAny: as above
  readonly module: Module<Args, Output>;
  readonly processGroup: ProcessGroup;
  readonly #options: ResolvedDdpOptions;
  readonly #sync: GradientSync;
  readonly #sink: GradSink;
  #opening: Promise<void> | undefined;

  /**
   * Takes the parameters' gradients over. Nothing is sent before initialize, or the first forward.
   * @throws {DdpConfigError} for contradicting, removed or unknown options, and parameters that are
   * not f32, f16 or bf16, or that are sharded, packed or wrapped already
   */
  constructor(module: Module<Args, Output>, options: DdpOptions) {
    super(module.device);
    this.module = this.child('module', module);
    this.processGroup = options.processGroup;
    this.#options = resolveOptions(options);
    this.#sync = new GradientSync(this.device, options.processGroup, this.#options, () =>
      this.#trainable(),
    );
    this.#sink = {
      target: (leaf) => this.#sync.target(leaf),
      accept: (leaf, gradient, pass) => this.#sync.accept(leaf, gradient, pass),
      final: (leaf, pass) => this.#sync.final(leaf, pass),
      clear: (leaf) => this.#sync.locals.clear(leaf),
    };
    const named = module.namedParameters();
    for (const [path, tensor] of named) this.#requirePlain(path, tensor);
    this.#requireTriggers(named.map(([, tensor]) => tensor));
    for (const [, tensor] of named) tensor.gradSink = this.#sink;
    if (!module.isTraining) this.eval(); // a new module is in training mode
  }

  override childPrefix(): string {
    return '';
  }

  /** The parameters whose gradients are reduced, in the module's order; empty before a forward. */
  get activeParams(): readonly Tensor[] {
    return this.#sync.plan?.active.map(({ tensor }) => tensor) ?? [];
  }

  /** Paths of the parameters of each bucket, in the order of reductions. */
  get buckets(): readonly (readonly string[])[] {
    return (
      this.#sync.plan?.buckets.map(({ parameters }) => parameters.map(({ path }) => path)) ?? []
    );
  }

  /** Whether buckets follow the order in which gradients came, on rank 0. */
  get isLearned(): boolean {
    return this.#sync.plan?.isLearned ?? false;
  }

  /**
   * With retainAllreduceBuffers: the flat buffer of each bucket after the last backward, which its
   * gradients look into and which is freed with them.
   */
  get allreduceBuffers(): readonly (Tensor | undefined)[] {
    return this.#sync.buffers;
  }

  /** The groups that buckets take in turn; none on one rank, processGroup alone by default. */
  get communicators(): readonly ProcessGroup[] {
    return this.#sync.communicators;
  }

  /** Of the last step with a reduction. */
  get timings(): StepTimings | undefined {
    return this.#sync.timings;
  }

  // ---- starting --------------------------------------------------------------------------------

  /**
   * Holds the ranks' parameters equal in path, dtype and shape, and then in value: rank 0's
   * parameters and buffers go to all. Collective, once; the first forward calls it.
   * @throws {DdpStructureError} on every rank, where the models differ
   */
  initialize(): Promise<void> {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  async #open(): Promise<void> {
    const tensors = this.#state();
    if (this.processGroup.worldSize > 1) {
      const lines = tensors.map(describeParameter);
      await requireAgreement(this.processGroup, 'parameters and buffers', lines);
    }
    await this.#sync.open();
    await this.syncParameters();
  }

  /** Sends parameters and buffers of `root` (default 0) to all ranks: after loading them on one. Collective. */
  async syncParameters(options: { readonly root?: number } = {}): Promise<void> {
    const tensors = this.#state().map(({ tensor }) => tensor);
    await this.#broadcast(tensors, { root: options.root ?? 0, tag: 'ddp parameters' });
  }

  /** Sends the buffers of `root` (default 0) to all ranks. Collective. */
  async syncBuffers(options: { readonly root?: number } = {}): Promise<void> {
    const tensors = this.module.namedBuffers().map(([, tensor]) => tensor);
    await this.#broadcast(tensors, { root: options.root ?? 0, tag: 'ddp buffers' });
  }

  async #broadcast(
    tensors: readonly Tensor[],
    options: { readonly root: number; readonly tag: string },
  ): Promise<void> {
    this.#requireRest(options.tag);
    if (this.processGroup.worldSize === 1) return;
    await this.#sync.inTurn((group) => broadcastTensors(group, tensors, options));
  }

  // ---- forward ---------------------------------------------------------------------------------

  override async forward(...args: Args): Promise<Output> {
    await this.initialize();
    const { device } = this;
    const isRecomputing = device.isInBackward;
    if (!isRecomputing) device.random.separate(this.processGroup.rank);
    if (!isRecomputing && this.isTraining && this.#options.isBroadcastingBuffers) {
      await this.syncBuffers({ root: await this.#sync.announceBuffers() });
    }
    if (!isRecomputing && device.isGradEnabled) {
      this.#sync.range('ddp: before forward', () => this.#sync.noteForward());
    }
    const output = await this.module.call(...args);
    if (device.isGradEnabled) {
      // A backward takes part even if it reaches no parameter: other ranks' may.
      device.beforeGradientOf(output, (pass: Pass) => this.#sync.beginPass(pass));
    }
    return output;
  }

  // ---- when to reduce --------------------------------------------------------------------------

  /**
   * Runs `body` without reducing: its backwards add up on each rank, and the next one outside
   * reduces the whole.
   * @throws {DdpStateError} inside a backward
   */
  async noSync<T>(body: () => T | Promise<T>): Promise<T> {
    this.#requireRest('noSync');
    const before = this.#sync.isSyncing;
    this.#sync.isSyncing = false;
    try {
      return await body();
    } finally {
      this.#sync.isSyncing = before;
    }
  }

  /** Until enableAllreduce gradients add up on each rank, in `grad`. Not inside a backward. */
  disableAllreduce(): void {
    this.#requireRest('disableAllreduce');
    this.#sync.isEnabled = false;
  }

  /** The next backward reduces what has added up, too. Not inside a backward. */
  enableAllreduce(): void {
    this.#requireRest('enableAllreduce');
    this.#sync.isEnabled = true;
  }

  /**
   * Runs `body` (this rank's steps) where ranks have unequal numbers of them: a rank that has no more
   * takes part in the others' reductions with zeros. At the end all have the weights and buffers of
   * a rank that stepped last. Collective; other collectives of `body` are not waited for, and what is
   * trained does not change in it. An error in `body` ends the job.
   */
  async join(body: () => Promise<void>, options: JoinOptions = {}): Promise<void> {
    await this.initialize();
    this.#requireRest('join');
    const root = await this.#sync.join(body, {
      isScaledToActive: options.divideByInitialWorldSize === false,
      onBuffers: (from) => this.syncBuffers({ root: from }),
    });
    await this.syncParameters({ root });
  }

  protected override releaseOwned(): void {
    for (const tensor of this.module.parameters()) {
      if (tensor.gradSink === this.#sink) tensor.gradSink = undefined;
    }
  }

  // ---- parameters ------------------------------------------------------------------------------

  /** Takes over what was added to the module since, too. */
  #trainable(): ActiveParameter[] {
    const found: ActiveParameter[] = [];
    for (const [path, tensor] of this.module.namedParameters()) {
      if (!tensor.requiresGrad || tensor.size === 0) continue;
      if (tensor.gradSink !== this.#sink) {
        this.#requirePlain(path, tensor);
        tensor.gradSink = this.#sink;
      }
      found.push({ path, tensor });
    }
    return found;
  }

  /** Parameters and buffers with their paths. */
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
    if (tensor.piece !== undefined || tensor.gradSink !== undefined) {
      throw new DdpConfigError(
        `ddp: expected parameters whose gradients nobody else takes, got '${path}', which is sharded, packed or wrapped already. Wrap the bare module, once.`,
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
      if (parameters.includes(trigger)) continue;
      throw new DdpConfigError(
        `ddp: expected allreduceTriggerParams of the wrapped module, got '${trigger.name}' [${trigger.shape.join(', ')}]. Take them from module.parameters().`,
      );
    }
  }

  #requireRest(operation: string): void {
    if (!this.#sync.isInBackward) return;
    const { rank, worldSize } = this.processGroup;
    throw new DdpStateError(
      `rank ${rank}/${worldSize} ${operation}: expected no backward under way, got one. Await backward first.`,
    );
  }
}
