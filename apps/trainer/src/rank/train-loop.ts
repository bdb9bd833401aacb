// The steps of a rank, apart from what computes them: learning rates, skipped steps, and what is
// reported of each.

import { DivergedError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import { learningRate, type RateConfig } from '../schedule.js';
import type { Best, EarlyEnd, StepMetrics, StepResources } from './events.js';
import type { Evaluated } from './step/evaluation.js';

/** What a rank asks of all after the present step. */
export type StopWish = 'go on' | 'stop' | 'end';

/** The result of a step, equal on all ranks. */
export interface StepOutcome {
  /**
   * The weighted sum of losses over the targets that count, divided by their number; before the
   * update.
   */
  readonly loss: number;
  readonly numTargets: number;
  /** The tokens of the step; undefined where they are those of whole rows. */
  readonly numTokens?: number | undefined;
  /** The norm of the unscaled gradients, before clipping; may be infinite or NaN. */
  readonly gradNorm: number;
  /** What the task tells of the targets beside the loss, as means; undefined for nothing. */
  readonly batchFigures?: StepMetrics['batchFigures'];
  /** By group of layers; undefined in a step that does not tell them. */
  readonly groups?: StepMetrics['groups'];
  /** The scale that the losses of this step had. */
  readonly lossScale: number;
  readonly isSkipped: boolean;
  /** What any of the ranks asks after this step, where they could ask for anything. */
  readonly stop?: StopWish | undefined;
}

/** What a line tells of a state beside its losses. */
export interface Hashed {
  readonly hash: string;
  readonly numericClass: string;
}

/** One rank's share of every step. */
export interface StepRunner {
  /** Runs step `step` (from 0) and, unless it is skipped, updates with rate `lr`. */
  runStep(step: number, lr: number): Promise<StepOutcome>;
  /**
   * What the evaluation tells, undefined where it was given up; absent where nothing is evaluated.
   */
  readonly evaluate?: (() => Promise<Evaluated | undefined>) | undefined;
  /**
   * Whether the time of the run is over, with the same answer on all ranks. Absent where there is
   * no time limit.
   */
  readonly isTimeOver?: (() => Promise<boolean>) | undefined;
  /** The hash of the state that a step has left; absent where nothing is hashed. Collective. */
  readonly hash?: (() => Promise<Hashed>) | undefined;
  resources(): StepResources;
}

/** How far a run is. */
export interface Progress {
  /** The number of steps that are done. */
  readonly step: number;
  /** The number of those that changed the parameters, which is the place in the schedule. */
  readonly updates: number;
}

export interface AfterStep extends Progress {
  /** The loss of the step: that of the weights before its update. */
  readonly loss: number;
  /** The loss of the evaluation after this step; undefined where there was none. */
  readonly validLoss: number | undefined;
  /** The best evaluation so far. */
  readonly best: Best | undefined;
  readonly isLast: boolean;
  /** The hash of the state after this step, where the run has any. Collective. */
  readonly hash?: (() => Promise<Hashed>) | undefined;
}

/** How far the steps came. */
export interface Reached extends Progress {
  /** Undefined where all steps are done. */
  readonly early?: EarlyEnd | undefined;
  readonly best: Best | undefined;
  /** The loss of the evaluation after the last step; undefined where there was none. */
  readonly validLoss: number | undefined;
}

/** Where a run goes on, with what was evaluated until then. */
export interface From extends Progress {
  readonly best?: Best | undefined;
  /** The loss of the evaluation after this very step. */
  readonly validLoss?: number | undefined;
  /** The step before it, whose update is done and of which the rest is to be done. */
  readonly untold?: Pick<Done, 'metrics' | 'resources'> | undefined;
}

export interface TrainLoopOptions {
  readonly config: RateConfig &
    Pick<RunConfig, 'batch' | 'seq' | 'evalEvery' | 'patience'> &
    Partial<Pick<RunConfig, 'model' | 'hashEvery' | 'again'>>;
  readonly runner: StepRunner;
  /** Where the run goes on. Default: at the first step, with nothing evaluated. */
  readonly from?: From | undefined;
  /** The number of rows of an epoch. */
  readonly rows: number;
  /** The tokens of the steps before the first one here. */
  readonly tokensBefore: number;
  readonly onStep: (metrics: StepMetrics, resources: StepResources) => void;
  /** Called after the update of each step, before anything waits for another rank. */
  readonly onUpdated?: (updated: Reached & Pick<Done, 'metrics' | 'resources'>) => void;
  /** Called after each step, once it has been reported. Resolves with whether the run ends here. */
  readonly afterStep?: ((progress: AfterStep) => Promise<boolean>) | undefined;
  readonly signal: AbortSignal;
}

/**
 * Runs all steps, or fewer where the run ends early; resolves to how far it came. A skipped step
 * counts in the log and uses up its rows, but the schedule of the learning rate stays where it was,
 * as the optimizer does.
 * @throws {DivergedError} after a step whose loss is not finite and which was not skipped
 */
export async function trainLoop(options: TrainLoopOptions): Promise<Reached> {
  const { config } = options;
  const from: From = options.from ?? { step: 0, updates: 0 };
  const { untold, step: first, updates: done, best: known, validLoss: last } = from;
  let place: Reached = { step: first, updates: done, best: known, validLoss: last };
  let tokens = options.tokensBefore;
  if (first < config.steps && last !== undefined && known !== undefined) {
    if (isPatienceOver(config, first, known.step)) {
      return { ...place, early: 'patience' }; // killed between save and results
    }
  }
  if (untold !== undefined) {
    place = await endStep(options, { from, place, ...untold });
  }
  while (place.step < config.steps && place.early === undefined) {
    options.signal.throwIfAborted();
    const { step, updates, best } = place;
    const { stop = 'go on', ...timed } = await timedStep(options, { step, updates, tokens });
    const { loss, skipped } = timed.metrics;
    tokens = timed.metrics.tokens;
    place = {
      step: step + 1,
      updates: skipped ? updates : updates + 1,
      best,
      validLoss: undefined,
    };
    options.onUpdated?.({ ...place, ...timed });
    if (!Number.isFinite(loss) && !skipped) {
      options.onStep(timed.metrics, timed.resources);
      throw divergedAt(step + 1, loss, config);
    }
    place = await endStep(options, { from, place, ...timed });
    if (stop !== 'go on' && place.step < config.steps) {
      place = { ...place, early: place.early ?? 'asked' };
    }
  }
  return place;
}

/** A step that is done, and what is told of it. */
interface Done {
  readonly from: From;
  /** Where its update has led, before any evaluation of that. */
  readonly place: Reached;
  readonly metrics: StepMetrics;
  readonly resources: StepResources;
}

/** Does what follows a step: evaluates, hashes, tells, saves. */
async function endStep(
  options: TrainLoopOptions,
  { from, place: { step, updates, best: before }, metrics, resources }: Done,
): Promise<Reached> {
  const { config, runner } = options;
  let best = before;
  const isEnd = step === config.steps;
  const isTimeOver = !isEnd && (await runner.isTimeOver?.()) === true;
  const isDue = step % config.evalEvery === 0 || isEnd || isTimeOver;
  const startMs = performance.now();
  const evaluated = isDue ? await runner.evaluate?.() : undefined;
  const evalMs = evaluated && performance.now() - startMs;
  const validLoss = evaluated?.loss;
  if (validLoss !== undefined && validLoss < (best?.validLoss ?? Number.POSITIVE_INFINITY)) {
    best = { step, validLoss };
  }
  const isOutOfPatience =
    validLoss !== undefined && !isEnd && isPatienceOver(config, step, best?.step ?? from.step);
  const figures = evaluated?.figures?.values;
  const early = isOutOfPatience ? 'patience' : isTimeOver ? 'time' : undefined;
  const isLast = isEnd || early !== undefined;
  const hash = onceOf(runner.hash);
  const isDueHash =
    config.again?.hashAt.includes(step) ?? (isLast || step % (config.hashEvery ?? 1) === 0);
  const hashed = isDueHash ? await hash?.() : undefined;
  const told = { ...metrics, validLoss, evalMs, ...(figures && { figures }), ...hashed };
  options.onStep(told, resources);
  const reached = { step, updates, best, validLoss };
  const isAsked = await options.afterStep?.({ ...reached, loss: metrics.loss, isLast, hash });
  const isEnough = step === config.again?.until;
  return { ...reached, early: early ?? (isAsked === true || isEnough ? 'asked' : undefined) };
}

/** The call, which is made once however often it is asked for. */
function onceOf<T>(call: (() => Promise<T>) | undefined): (() => Promise<T>) | undefined {
  let made: Promise<T> | undefined;
  return call && (() => (made ??= call()));
}

/** Runs one step; resolves to what is reported of it, as it is before an evaluation sends. */
async function timedStep(
  { config, runner, rows }: TrainLoopOptions,
  { step, updates, tokens }: Progress & { readonly tokens: number },
): Promise<Pick<Done, 'metrics' | 'resources'> & Pick<StepOutcome, 'stop'>> {
  const lr = learningRate(config, updates);
  const startMs = performance.now();
  const outcome = await runner.runStep(step, lr);
  const stepMs = performance.now() - startMs;
  const numTokens = outcome.numTokens ?? config.batch * config.seq;
  const metrics = {
    step: step + 1,
    loss: outcome.loss,
    targets: outcome.numTargets,
    ...(outcome.batchFigures && { batchFigures: outcome.batchFigures }),
    gradNorm: Number.isFinite(outcome.gradNorm) ? outcome.gradNorm : null,
    ...(outcome.groups && Number.isFinite(outcome.gradNorm) && { groups: outcome.groups }),
    lr,
    lossScale: outcome.lossScale,
    skipped: outcome.isSkipped,
    stepMs,
    tokensPerSecond: (numTokens * 1000) / stepMs,
    tokens: tokens + numTokens,
    epoch: ((step + 1) * config.batch) / rows,
  };
  return { metrics, resources: runner.resources(), stop: outcome.stop };
}

/** An infinite loss ends a run as NaN does: beyond the largest f32, no step leads back. */
function divergedAt(
  step: number,
  loss: number,
  { model }: Partial<Pick<RunConfig, 'model'>>,
): DivergedError {
  const what = Number.isNaN(loss) ? 'not a number' : 'infinite';
  if (step === 1 && model?.kind === 'module') {
    return new DivergedError(
      `--model ${model.path}: the sum of its losses is ${what} at step 1, before any weight has changed. Look at what loss computes of the first rows, or for what --precision is too narrow.`,
    );
  }
  if (step === 1) {
    return new DivergedError(
      `The loss is ${what} at step 1, before any weight has changed: the model's own weights are damaged, or --precision is too narrow for them.`,
    );
  }
  return new DivergedError(
    `The loss is ${what} at step ${step}: the run diverged. Use a smaller --lr, a longer --warmup or --clip 1.`,
  );
}

/**
 * Whether `patience` evaluations have followed the best one, or without one the step where the run
 * began to be evaluated; a NaN loss counts as not lower.
 */
function isPatienceOver(
  { patience, evalEvery }: Pick<RunConfig, 'patience' | 'evalEvery'>,
  step: number,
  since: number,
): boolean {
  const numAfter = Math.floor(step / evalEvery) - Math.floor(since / evalEvery);
  return patience !== undefined && numAfter >= patience;
}
