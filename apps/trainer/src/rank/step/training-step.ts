// One rank's share of an optimizer step: micro-steps forward and backward, then the update, whose
// kernel applies a single factor that unscales and clips. It reads gradients and never writes them.
// Only the loss and the norm, which every rank must know, wait for the device.

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
import { isWatched, type RunConfig } from '../../run-config.js';
import type { TaskStrategy } from '../strategies/strategy.js';
import { sumsOfMicroSteps } from '../strategies/sum-over-ranks.js';
import type { StepOutcome } from '../train-loop.js';
import { layerNorms, tellsLayers, tellsUpdates } from './layer-norms.js';
import { LayerUpdates } from './layer-updates.js';
import type { StepPhase } from './phase-memory.js';

export interface TrainingStepOptions {
  readonly config: RunConfig;
  readonly rank: number;
  readonly device: Device;
  readonly strategy: TaskStrategy;
  readonly data: Dataset;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Called where each phase of a step begins; undefined: what is only done to be told. */
  readonly onPhase?: (phase: StepPhase | undefined) => void;
  /** Runs what is only done to be told, and counts nothing that it sends. Default: just runs it. */
  readonly uncounted?: <T>(run: () => Promise<T>) => Promise<T>;
  /** The norm of all gradients. Default: nn's; a dry run has a number of its own. */
  readonly gradNorm?: (module: Module) => Promise<number>;
}

export class TrainingStep {
  readonly #options: TrainingStepOptions;
  /** f16 needs one, because its smallest gradients would vanish without it. */
  readonly #scaler: GradScaler | undefined;

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
   * is skipped: every rank knows it from the data, and none computes or sends anything.
   */
  async run(step: number, lr: number): Promise<StepOutcome> {
    const { config, rank, device, strategy, group, data } = this.#options;
    const { lossScale } = this;
    const numTargets = await data.numTargets(step);
    if (numTargets === 0) {
      return { loss: Number.NaN, numTargets, gradNorm: Number.NaN, lossScale, isSkipped: true };
    }
    for (const optimizerGroup of strategy.optimizer.groups) {
      optimizerGroup.lr = lr;
    }
    const { losses: own } = await device.scope(() => this.#gradients(step, lossScale / numTargets));
    own.catch(() => undefined); // seen below, unless the update fails first
    const { isSkipped, ...norms } = await this.#update(step, lossScale);
    strategy.optimizer.zeroGrad();
    const sums = await sumsOfMicroSteps(await own, config, { rank, group, tag: 'loss' });
    const [loss, ...figures] = sums.map((sum) => sum / numTargets);
    const names = strategy.objective.figures;
    const told = names && {
      batchFigures: Object.fromEntries(names.map((name, i) => [name, figures[i]!])),
    };
    const numTokens = data.numTokens?.(step);
    return { loss: loss!, numTargets, numTokens, ...told, ...norms, lossScale, isSkipped };
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
    const { rank, device, strategy, data, onPhase = () => {} } = this.#options;
    return device.scope(async () => {
      const batch = await data.microBatch(step, rank, microStep);
      device.random.begin({ step, rowOffset: batch.firstRow });
      return strategy.objective.backward(batch, { scale, onPhase });
    });
  }

  /** Steps, unless a gradient of any rank overflowed in f16. Collective. */
  async #update(
    step: number,
    lossScale: number,
  ): Promise<Pick<StepOutcome, 'gradNorm' | 'groups' | 'isSkipped'>> {
    const { config, device, strategy, onPhase, uncounted = runIt } = this.#options;
    const { module, optimizer } = strategy;
    onPhase?.('norm');
    // All ranks have the same norm, so they agree on what to skip without asking each other.
    const found = await this.#norms(step);
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
  async #norms(
    step: number,
  ): Promise<{ readonly norm: number; readonly groups?: ReadonlyMap<string, number> }> {
    const { module } = this.#options.strategy;
    const { config, gradNorm: norm = gradNorm } = this.#options;
    const isTold = isWatched(config) && tellsLayers(step + 1, config.steps);
    return isTold && norm === gradNorm ? layerNorms(module) : { norm: await norm(module) };
  }
}

const runIt = <T>(run: () => Promise<T>): Promise<T> => run();
