// The steps of a rank, apart from what computes them: learning rates, skipped steps, and what is
// reported of each.

import { DivergedError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import { learningRate } from '../schedule.js';
import type { EarlyEnd, StepMetrics, StepResources } from './events.js';

/** The result of a step, equal on all ranks. */
export interface StepOutcome {
  /**
   * The weighted sum of losses over the targets that count, divided by their number; before the
   * update.
   */
  readonly loss: number;
  readonly numTargets: number;
  /** The norm of the unscaled gradients, before clipping; may be infinite or NaN. */
  readonly gradNorm: number;
  /** The scale that the losses of this step had. */
  readonly lossScale: number;
  readonly isSkipped: boolean;
}

/** One rank's share of every step. */
export interface StepRunner {
  /** Runs step `step` (from 0) and, unless it is skipped, updates with rate `lr`. */
  runStep(step: number, lr: number): Promise<StepOutcome>;
  /**
   * The loss of the evaluation, undefined where it was given up; absent where nothing is
   * evaluated.
   */
  readonly evaluate?: (() => Promise<number | undefined>) | undefined;
  /**
   * Whether the time of the run is over, with the same answer on all ranks. Absent where there is
   * no time limit.
   */
  readonly isTimeOver?: (() => Promise<boolean>) | undefined;
  resources(): StepResources;
}

/** How far a run is. */
export interface Progress {
  /** The number of steps that are done. */
  readonly step: number;
  /** The number of those that changed the parameters, which is the place in the schedule. */
  readonly updates: number;
}

/** The lowest loss of an evaluation so far. */
export interface Best {
  readonly step: number;
  readonly validLoss: number;
}

export interface AfterStep extends Progress {
  /** The loss of the evaluation after this step; undefined where there was none. */
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
  /** Where the run goes on. Default: at the first step, with nothing evaluated. */
  readonly from?:
    | (Progress & Partial<Pick<AfterStep, 'validLoss'>> & { readonly best?: Best | undefined })
    | undefined;
  readonly onStep: (metrics: StepMetrics, resources: StepResources) => void;
  /** Called after each step, once it has been reported. Resolves with whether the run ends here. */
  readonly afterStep?: ((progress: AfterStep) => Promise<boolean>) | undefined;
  readonly signal: AbortSignal;
}

/**
 * Runs all steps, or fewer where the run ends early; resolves to how far it came, and why not
 * further. A skipped step counts in the log and uses up its rows, but the schedule of the learning
 * rate stays where it was, as the optimizer does.
 */
export async function trainLoop(
  options: TrainLoopOptions,
): Promise<Progress & { readonly early?: EarlyEnd | undefined }> {
  const { config, runner } = options;
  const from = options.from ?? { step: 0, updates: 0, best: undefined, validLoss: undefined };
  let { updates } = from;
  let { best } = from;
  const wasEvaluated = from.validLoss !== undefined && best !== undefined;
  if (wasEvaluated && from.step < config.steps && isPatienceOver(config, from.step, best)) {
    return { step: from.step, updates, early: 'patience' }; // killed between its save and its results
  }
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
      throw new DivergedError(
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

/** Whether `patience` evaluations have followed the best one; a NaN loss counts as not lower. */
function isPatienceOver(
  { patience, evalEvery }: Pick<RunConfig, 'patience' | 'evalEvery'>,
  step: number,
  best: Best | undefined,
): boolean {
  const numAfter = Math.floor(step / evalEvery) - Math.floor((best?.step ?? 0) / evalEvery);
  return patience !== undefined && numAfter >= patience;
}
