// The steps of a rank, above what computes them: rates, skipped steps and what is told of each.

import { TrainerError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import { learningRate } from '../schedule.js';
import type { StepMetrics, StepResources } from './events.js';

/** What a step came to, equal on all ranks. */
export interface StepOutcome {
  /** Weighted sum over the targets that count, divided by their number; before the update. */
  readonly loss: number;
  readonly numTargets: number;
  /** Unscaled, before clipping; may be infinite or not a number. */
  readonly gradNorm: number;
  /** The scale that the losses of this step had. */
  readonly lossScale: number;
  readonly isSkipped: boolean;
}

/** One rank's share of every step. */
export interface StepRunner {
  /** Runs step `step` (from 0) and, unless it is skipped, updates with rate `lr`. */
  runStep(step: number, lr: number): Promise<StepOutcome>;
  /** The loss on what is evaluated, where there is any. */
  readonly evaluate?: (() => Promise<number>) | undefined;
  /** Whether the time of the run is over, told alike to all ranks. Without one it has all of it. */
  readonly isTimeOver?: (() => Promise<boolean>) | undefined;
  resources(): StepResources;
}

/** Why a run ended before its last step. */
export type EarlyEnd = 'patience' | 'time' | 'asked';

/** How far a run is. */
export interface Progress {
  /** Steps that are done. */
  readonly step: number;
  /** Those of them that changed the parameters: the place in the schedule. */
  readonly updates: number;
}

/** The lowest loss of an evaluation so far. */
export interface Best {
  readonly step: number;
  readonly validLoss: number;
}

export interface AfterStep extends Progress {
  /** What an evaluation behind this step came to; undefined where there was none. */
  readonly validLoss: number | undefined;
  readonly isLast: boolean;
}

export interface TrainLoopOptions {
  readonly config: Pick<
    RunConfig,
    | 'steps'
    | 'batch'
    | 'seq'
    | 'lr'
    | 'schedule'
    | 'warmup'
    | 'decaySteps'
    | 'evalEvery'
    | 'patience'
  >;
  readonly runner: StepRunner;
  /** Default: the first step, with nothing evaluated. */
  readonly from?: (Progress & { readonly best?: Best | undefined }) | undefined;
  readonly onStep: (metrics: StepMetrics, resources: StepResources) => void;
  /** Called after each step, when it has been told of; whether the run ends here. */
  readonly afterStep?: ((progress: AfterStep) => Promise<boolean>) | undefined;
  readonly signal: AbortSignal;
}

/**
 * Runs all steps, or fewer where one is the last for another reason; resolves to how far it came,
 * and why not further. A skipped step counts in the log and uses up its rows, but the schedule of
 * the learning rate stays where it was, as the optimizer does.
 */
export async function trainLoop(
  options: TrainLoopOptions,
): Promise<Progress & { readonly early?: EarlyEnd | undefined }> {
  const { config, runner } = options;
  const from = options.from ?? { step: 0, updates: 0, best: undefined };
  let { updates } = from;
  let { best } = from;
  for (let { step } = from; step < config.steps; step++) {
    options.signal.throwIfAborted();
    const lr = learningRate(config, updates);
    const startMs = performance.now();
    const outcome = await runner.runStep(step, lr);
    const stepMs = performance.now() - startMs;
    if (!outcome.isSkipped) {
      updates++;
    }
    const resources = runner.resources(); // before an evaluation sends anything
    const metrics = {
      step: step + 1,
      loss: outcome.loss,
      targets: outcome.numTargets,
      gradNorm: Number.isFinite(outcome.gradNorm) ? outcome.gradNorm : null,
      lr,
      lossScale: outcome.lossScale,
      skipped: outcome.isSkipped,
      stepMs,
      tokensPerSecond: (config.batch * config.seq * 1000) / stepMs,
    };
    const isEnd = step + 1 === config.steps;
    const isTimeOver = !isEnd && (await runner.isTimeOver?.()) === true;
    const isDue = (step + 1) % config.evalEvery === 0 || isEnd || isTimeOver;
    const validLoss = isDue ? await runner.evaluate?.() : undefined;
    if (validLoss !== undefined && validLoss < (best?.validLoss ?? Number.POSITIVE_INFINITY)) {
      best = { step: step + 1, validLoss };
    }
    const isOutOfPatience =
      validLoss !== undefined && !isEnd && isPatienceOver(config, step + 1, best);
    options.onStep({ ...metrics, validLoss }, resources);
    if (Number.isNaN(outcome.loss) && !outcome.isSkipped) {
      throw new TrainerError(
        `The loss is not a number at step ${step + 1}: the run diverged. Use a smaller --lr, a longer --warmup or --clip 1.`,
      );
    }
    const early = isOutOfPatience ? 'patience' : isTimeOver ? 'time' : undefined;
    const isLast = isEnd || early !== undefined;
    const isAsked = await options.afterStep?.({ step: step + 1, updates, validLoss, isLast });
    if (isAsked === true || early !== undefined) {
      return { step: step + 1, updates, early: early ?? 'asked' };
    }
  }
  return { step: Math.max(from.step, config.steps), updates };
}

/**
 * Whether so many evaluations have followed the best one; a loss that is none counts as no lower
 * one.
 */
function isPatienceOver(
  { patience, evalEvery }: Pick<RunConfig, 'patience' | 'evalEvery'>,
  step: number,
  best: Best | undefined,
): boolean {
  const numAfter = Math.floor(step / evalEvery) - Math.floor((best?.step ?? 0) / evalEvery);
  return patience !== undefined && numAfter >= patience;
}
