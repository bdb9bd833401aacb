// One rank's share of an optimizer step: micro-steps forward and backward, then the update, whose
// kernel applies a single factor that unscales and clips. It reads gradients and never writes them.
// Only the loss and the norm, which every rank must know, wait for the device.
//
// Note [decision]
// The sum of the losses is one call of all ranks, made when a rank has all gradients and their
// norm, and before it updates anything. Where that call ends on one rank all have made it, and
// after it nothing waits for a rank (of replicas that round alike): a rank that is told that others
// have the decision can always end the step with what it has.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  clipCoefficient,
  GradScaler,
  type GradScalerState,
  gradNorm,
  type Module,
} from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { Dataset } from '../../data/dataset.js';
import type { Parts } from '../../data/row-order.js';
import { isWatched, type RunConfig } from '../../run-config.js';
import type { TaskStrategy } from '../strategies/strategy.js';
import { sumsOfMicroSteps } from '../strategies/sum-over-ranks.js';
import type { StepOutcome, StopWish } from '../train-loop.js';
import { layerNorms, tellsLayers, tellsUpdates } from './layer-norms.js';
import { LayerUpdates } from './layer-updates.js';
import type { StepPhase } from './phase-memory.js';

/** Numbers whose sum over ranks tells what any of them asks. */
const WISHES: Readonly<Record<StopWish, number>> = { 'go on': 0, stop: 1, end: 2 ** 16 };

/** What a step's update leaves to be told. */
type Updated = Pick<StepOutcome, 'gradNorm' | 'groups' | 'isSkipped'>;

interface Norms {
  readonly norm: number;
  /** By group of layers, where they are told. */
  readonly groups?: ReadonlyMap<string, number>;
}

/** A step with all of its gradients, which awaits the decision. */
interface Undecided {
  readonly step: number;
  /** Undefined where no target counted. */
  readonly norms: Norms | undefined;
  readonly lossScale: number;
}

export interface TrainingStepOptions {
  readonly config: RunConfig & Pick<Parts, 'groupCounts'>;
  readonly rank: number;
  readonly device: Device;
  readonly strategy: TaskStrategy;
  readonly data: Dataset;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Called where each phase of a step begins; undefined: what is only done to be told. */
  readonly onPhase?: (phase: StepPhase | undefined) => void;
  /** Called behind each backward with the number of its rows. */
  readonly onRows?: (rows: number) => void;
  /** Runs what is only done to be told, and counts nothing that it sends. Default: just runs it. */
  readonly uncounted?: <T>(run: () => Promise<T>) => Promise<T>;
  /**
   * Whether this rank asks all of them to stop after the present step, or to end the job with it.
   * Absent: nobody ever does. Ranks have it alike, with `gradientGroups`.
   */
  readonly stopWish?: () => StopWish;
  /** The norm of all gradients. Default: nn's; a dry run has a number of its own. */
  readonly gradNorm?: (module: Module) => Promise<number>;
}

export class TrainingStep {
  readonly #options: TrainingStepOptions;
  /** f16 needs one, because its smallest gradients would vanish without it. */
  readonly #scaler: GradScaler | undefined;
  #undecided: Undecided | undefined;

  constructor(options: TrainingStepOptions) {
    this.#options = options;
    const { config, strategy } = options;
    this.#scaler = config.precision === 'fp16' ? new GradScaler(strategy.module) : undefined;
  }

  /** The scale that the losses of the next step have. */
  get lossScale(): number {
    return this.#scaler?.factor ?? 1;
  }

  /** The state of the loss scaler, for a save; undefined where nothing is scaled. */
  get scaler(): GradScalerState | undefined {
    return this.#scaler?.stateDict();
  }

  /** Sets the state of the scaler from a save; a save of another precision has none. */
  loadScaler(state: GradScalerState | undefined): void {
    if (state !== undefined) {
      this.#scaler?.loadStateDict(state);
    }
  }

  /**
   * Runs step `step` (from 0) with learning rate `lr`; collective. A step in which no target counts
   * is skipped: every rank knows it from the data, and none computes or sends anything, unless it
   * has to ask whether the ranks stop.
   */
  async run(step: number, lr: number): Promise<StepOutcome> {
    const { strategy, data, stopWish } = this.#options;
    const { lossScale } = this;
    this.#undecided = undefined;
    const numTargets = await data.numTargets(step);
    if (numTargets === 0) {
      this.#undecided = stopWish && { step, norms: undefined, lossScale };
      const stop = stopWish && (await this.#decide([])).stop;
      this.#undecided = undefined;
      const nothing = { loss: Number.NaN, numTargets, gradNorm: Number.NaN };
      return { ...nothing, lossScale, isSkipped: true, ...(stop && { stop }) };
    }
    for (const optimizerGroup of strategy.optimizer.groups) {
      optimizerGroup.lr = lr;
    }
    const { device, onPhase } = this.#options;
    const { losses } = await device.scope(() => this.#gradients(step, lossScale / numTargets));
    losses.catch(() => undefined); // seen below, unless the norm fails first
    onPhase?.('norm');
    const norms = await this.#norms(step);
    this.#undecided = { step, norms, lossScale };
    const { sums, stop } = await this.#decide(await losses);
    const ended = (await this.finish())!;
    const [loss, ...figures] = sums.map((sum) => sum / numTargets);
    const names = strategy.objective.figures;
    const told = names && {
      batchFigures: Object.fromEntries(names.map((name, i) => [name, figures[i]!])),
    };
    const numTokens = data.numTokens?.(step);
    return {
      ...{ loss: loss!, numTargets, numTokens, ...told, ...ended, lossScale },
      ...(stop && { stop }),
    };
  }

  /** The step of which this rank has all gradients, and not the decision; see Note [decision]. */
  get undecided(): number | undefined {
    return this.#undecided?.step;
  }

  /**
   * Ends the step that is undecided here, since others have its decision; it waits for no other
   * rank. Undefined where none is, or where no target counted.
   */
  async finish(): Promise<Updated | undefined> {
    const { norms, step, lossScale } = this.#undecided ?? {};
    this.#undecided = undefined;
    if (norms === undefined) {
      return undefined;
    }
    const updated = await this.#update(step!, { norms, lossScale: lossScale! });
    this.#options.strategy.optimizer.zeroGrad();
    return updated;
  }

  /**
   * Sums the losses and figures of all ranks, and asks whether any of them is to stop after this
   * step. See Note [decision]. Collective.
   */
  async #decide(losses: readonly (readonly number[])[]): Promise<{
    readonly sums: readonly number[];
    readonly stop: StopWish | undefined;
  }> {
    const { config, rank, group, stopWish } = this.#options;
    const of = { rank, group, tag: 'loss' };
    if (stopWish === undefined) {
      return { sums: await sumsOfMicroSteps(losses, config, of), stop: undefined };
    }
    const own = losses.length === 0 ? [[]] : losses;
    const wish = WISHES[stopWish()];
    const all = own.map((values, i) => [...values, i === 0 ? wish : 0]);
    const sums = await sumsOfMicroSteps(all, config, of);
    const asked = sums.at(-1)!;
    const stop = asked === 0 ? 'go on' : asked < WISHES.end ? 'stop' : 'end';
    return { sums: sums.slice(0, -1), stop };
  }

  /**
   * Adds up the gradients of all micro-steps. Resolves with this rank's losses and figures, which
   * are still on their way to the host.
   */
  async #gradients(step: number, scale: number): Promise<{ losses: Promise<number[][]> }> {
    const { config, strategy, data } = this.#options;
    const losses: Tensor[] = [];
    for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
      const run = () => this.#microStep(step, microStep, scale);
      const isLast = microStep === data.numMicroSteps - 1;
      const isReduced = isLast || config.sync || config.gradientGroups !== undefined;
      losses.push(isReduced ? await run() : await strategy.noSync(run));
    }
    return { losses: Promise.all(losses.map(async (loss) => [...(await loss.toArray())])) };
  }

  /**
   * Runs forward and backward on this rank's rows, which may be none: even then it takes part in
   * the collectives. Resolves with the sum of the losses, and of figures.
   * @param scale the factor of that sum before its gradients are taken
   */
  #microStep(step: number, microStep: number, scale: number): Promise<Tensor> {
    const { rank, device, strategy, data, onPhase = () => {}, onRows } = this.#options;
    return device.scope(async () => {
      const batch = await data.microBatch(step, rank, microStep);
      device.random.begin({ step, rowOffset: batch.firstRow });
      const loss = await strategy.objective.backward(batch, { scale, onPhase });
      onRows?.(batch.rows);
      return loss;
    });
  }

  /** Steps, unless a gradient of any rank overflowed in f16. All ranks have the same norm. */
  async #update(
    step: number,
    { norms: found, lossScale }: Pick<Undecided, 'lossScale'> & { readonly norms: Norms },
  ): Promise<Updated> {
    const { config, device, strategy, onPhase, uncounted = runIt } = this.#options;
    const { module, optimizer } = strategy;
    const norm = found.norm / lossScale;
    const isSkipped = this.#scaler !== undefined && !Number.isFinite(norm);
    this.#scaler?.update(isSkipped);
    onPhase?.('update');
    const updates =
      found.groups && !isSkipped && tellsUpdates(step + 1, config.steps)
        ? new LayerUpdates({ device, module, optimizer })
        : undefined;
    if (!isSkipped) {
      await device.scope(async () => {
        // A factor of 1 is left out; the kernel then reads gradients as they are.
        const factor = clipCoefficient(norm, config.clip) / lossScale;
        const gradScale = factor === 1 ? undefined : device.full([1], factor);
        await strategy.step({ gradScale });
      });
    }
    onPhase?.(undefined);
    const ratios = updates && (await uncounted(() => updates.ratios()));
    const told = [...(found.groups ?? [])].map(([name, own]) => {
      return [name, { gradNorm: own / lossScale, updateRatio: ratios?.get(name) }] as const;
    });
    const groups = found.groups && Object.fromEntries(told);
    return { gradNorm: norm, groups, isSkipped };
  }

  /** The norm of all gradients and, where they are told, those of groups of layers. */
  async #norms(step: number): Promise<Norms> {
    const { module } = this.#options.strategy;
    const { config, gradNorm: norm = gradNorm } = this.#options;
    const isTold = isWatched(config) && tellsLayers(step + 1, config.steps);
    return isTold && norm === gradNorm ? layerNorms(module) : { norm: await norm(module) };
  }
}

const runIt = <T>(run: () => Promise<T>): Promise<T> => run();
