// The training of one rank: what it goes on from, its steps with evaluations and saves, and the
// weights that they leave.

import { hostname } from 'node:os';
import { dirname } from 'node:path';
import type { Dataset } from '../data/dataset.js';
import { DivergedError, UsageError } from '../errors.js';
import { type FoundSave, isSaveOf, pathOf, readSave, savesOf } from '../files/save-directory.js';
import type { ModelState } from '../model/model-directory.js';
import { makesSaves, type PreparedRun, savesAtStop } from '../run-config.js';
import { loadResumed, loadSave, type Resumed } from '../saves/resume-run.js';
import { RunSaves } from '../saves/run-saves.js';
import { evaluatedOn, evaluationsOf } from '../saves/saved-run.js';
import { countParameters } from '../task/text-config.js';
import { beginRecord } from './begin-record.js';
import { shownCards } from './choose-adapter.js';
import type { EmitRankEvent, FinalWeights, RankTaken, RowTold } from './events.js';
import { measureCompute } from './measure-compute.js';
import { OwnObjective } from './objectives/own.js';
import type { OpenedRank } from './open-rank.js';
import type { RankWatch } from './rank-watch.js';
import { findRunReferences } from './run-references.js';
import { showText } from './show-text.js';
import { readAsked } from './step/answers.js';
import { type EvaluationOptions, evaluate, halvesRatio, lossAhead } from './step/evaluation.js';
import { replayRows } from './step/replay-rows.js';
import { TrainingStep } from './step/training-step.js';
import { savingOf, trainedState } from './strategies/model-saves.js';
import { sumOverRanks } from './strategies/sum-over-ranks.js';
import { type AfterStep, type From, type Reached, trainLoop } from './train-loop.js';

/** What a rank has trained. */
export interface Trained {
  /** The weights that are left, for rank 0, on the host or at rest. */
  readonly state: ModelState;
  readonly final: FinalWeights;
  readonly saves: RunSaves | undefined;
  /** The number of steps of this command, and what they took. */
  readonly steps: number;
  readonly measured: RankTaken;
}

/** How the steps of a rank ended. */
export interface Ended {
  readonly reached: Reached;
  /** The loss of the weights on the rows that would follow; undefined where no target counts. */
  readonly loss: number | undefined;
}

/** Reports that everything is set up. Resolves with the numeric class of the rank's device. */
export async function tellReady(
  { options, backend, device, data, strategy }: OpenedRank,
  rank = options.rank,
): Promise<string> {
  const { config, host, emit } = options;
  const numericClass = await device.numericClass();
  const { kind, description, isSoftware } = backend.info;
  const tiles = await host.matmulChoices(backend);
  emit({
    type: 'ready',
    ready: {
      rank,
      device: kind,
      description,
      isSoftware,
      host: hostname(),
      shown: kind === 'webgpu' ? shownCards(process.env) : undefined,
      numericClass,
      tiles,
      params: countParameters(config.modelConfig),
      shardBytes: strategy.shardBytes,
      processBytes: process.resourceUsage().maxRSS * 1024,
      data: data.train.size,
      valid: data.valid?.size,
      ...(config.head.kind !== 'lm' && config.head.kind !== 'module' && { head: config.head }),
    },
  });
  const compute = rank === 0 ? await measureCompute(config, backend) : undefined;
  if (compute !== undefined) {
    emit({ type: 'compute', ...compute });
  }
  return numericClass;
}

/** Loads what the run goes on from; undefined where it is new. Collective. */
export async function resume(
  { options, strategy, resuming }: OpenedRank,
  numericClass: string,
): Promise<Resumed | undefined> {
  const { config, rank, emit } = options;
  const { background: group, plan, tiles } = resuming;
  const resumed =
    plan && (await loadResumed(plan, { config, strategy, group, numericClass, tiles }));
  if (resumed !== undefined && rank === 0) {
    const { notes, save } = resumed;
    emit({ type: 'resumed', from: { step: save?.record.step ?? 0, path: save?.path, notes } });
  }
  return resumed;
}

/**
 * Loads the weights that a new run begins with, and nothing else of their save. Collective.
 * @throws {UsageError} where they are damaged, or adapters of another base
 */
export async function loadFirst({ options, strategy, resuming }: OpenedRank): Promise<void> {
  const { firstSave: path } = options.config;
  if (path === undefined) {
    return;
  }
  const flag = '--init-from';
  const { background: group, base } = resuming;
  const { base: theirs } = ((await readSave(path)) as FoundSave).record;
  if (theirs?.sha256 !== base?.sha256) {
    throw new UsageError(
      `${flag}: ${path} holds adapters that were trained beside ${theirs?.path} (${theirs?.sha256}), got ${base?.path} (${base?.sha256}). Beside other weights they say nothing of use: give that --model.`,
    );
  }
  const problem = await loadSave(path, { strategy, group, isWeightsAlone: true, flag });
  if (problem !== undefined) {
    throw new UsageError(
      `${flag}: ${path} can't be used: ${problem} Give another save of the run, or its model.`,
    );
  }
}

/** Where the steps begin; undefined for the first one. */
export function fromOf(resumed: Resumed | undefined, config: PreparedRun): From | undefined {
  const record = resumed?.save?.record;
  return record && { step: record.step, updates: record.updates, ...evaluationsOf(record, config) };
}

/** The saves of the run: those that it makes, and its own one that it goes on from. Collective. */
export async function openSaves(
  { options, strategy, groups, resuming }: OpenedRank,
  from: { readonly resumed: Resumed | undefined; readonly numericClass: string },
): Promise<RunSaves | undefined> {
  const { config, emit, wrapUp } = options;
  const { background, base, tiles } = resuming;
  const save = from.resumed?.save;
  const isOwn = save !== undefined && isSaveOf(config.out, save.path);
  if (!savesAtStop(config) && !makesSaves(config) && !isOwn) {
    return undefined;
  }
  const before = save && evaluationsOf(save.record, config);
  return await RunSaves.open({
    config,
    emit,
    wrapUp,
    saving: savingOf(strategy),
    group: groups.gather,
    background,
    base,
    tiles,
    numericClass: from.numericClass,
    valid: before?.valid ?? evaluatedOn(config),
    best: before?.best,
    from: isOwn ? save.step : undefined,
  });
}

interface StepParts {
  readonly resumed: Resumed | undefined;
  readonly saves: RunSaves | undefined;
  readonly watch: RankWatch;
  /** The numeric class of this rank's device. */
  readonly numericClass: string;
}

/** Runs the steps, and computes the loss of their weights on the rows that would follow. */
export async function runSteps(
  run: OpenedRank,
  { resumed, saves, watch, numericClass }: StepParts,
): Promise<Ended> {
  const { options, data, device, strategy, groups } = run;
  const { config, rank, emit, signal } = options;
  const { train, valid } = data;
  const { counter, onPhase } = watch;
  const group = groups.gather;
  const tell: EmitRankEvent = (event) => rank === 0 && emit(event);
  const parts = { config, rank, device, strategy, group };
  const step = new TrainingStep({
    config,
    rank,
    device,
    strategy,
    group,
    data: train,
    onPhase,
    uncounted: (body) => counter.pause(body),
  });
  const onRow = (row: RowTold) => emit({ type: 'row', row });
  const rows = { ...parts, data: train, onRow };
  const replay = (at: number) => replayRows({ ...rows, lossScale: step.lossScale }, at);
  step.loadScaler(resumed?.save?.record.scaler);
  const onStep = (done: number, total: number) => tell({ type: 'evaluating', done, total });
  const hash = await counter.pause(() => beginRecord(run, { resumed, numericClass }));
  const isGivenUp = saves?.isAsked;
  const asked = await readAsked(config);
  let current = 0;
  let saveWaitMs: number | undefined;
  const from = fromOf(resumed, config);
  await counter.pause(() => findRunReferences(run, { from: from?.step ?? 0, numericClass }));
  if (from === undefined && strategy.objective instanceof OwnObjective) {
    const { objective } = strategy;
    const ratio = await counter.pause(() => halvesRatio({ ...parts, data: train }, objective));
    // A loss that looks at several rows at once is no sum either, but then by some other factor.
    if (ratio !== undefined && Math.abs(ratio - 2) < 0.5) {
      const text = `--model ${config.model.kind === 'module' ? config.model.path : ''}: its loss looks like a mean, for the two halves of a batch have ${ratio.toFixed(2)} times the loss of the whole. The trainer divides by the number of targets itself, and learns from gradients that are too small by it: return the sum, such as crossEntropy(logits, targets, { reduction: 'sum' }).`;
      tell({ type: 'warning', text });
    }
  }
  const reached = await trainLoop({
    config,
    signal,
    from,
    rows: train.size.rows,
    tokensBefore: tokensUntil(from?.step ?? 0, train, config),
    afterStep: (progress) =>
      counter.pause(async () => {
        if (isSampled(progress, config)) {
          await showText(run);
        }
        const startMs = performance.now();
        const isAsked = (await saves?.after({ ...progress, scaler: step.scaler })) === true;
        const waitedMs = performance.now() - startMs;
        saveWaitMs = waitedMs < 1 ? undefined : waitedMs; // a step without a save just asks
        return isAsked;
      }),
    runner: {
      runStep: (stepIndex, lr) => {
        current = stepIndex + 1;
        watch.begin(stepIndex);
        return config.again?.rowsOf === current
          ? counter.pause(() => replay(stepIndex)).then(() => step.run(stepIndex, lr))
          : step.run(stepIndex, lr);
      },
      isTimeOver: clockOf(run, watch),
      evaluate:
        valid &&
        (async () => {
          const found = await counter.pause(() =>
            evaluate({ ...parts, data: valid, asked, onStep, isGivenUp, signal }),
          );
          const { classes, confusion } = found?.figures ?? {};
          if (classes !== undefined) {
            tell({ type: 'classes', step: current, classes, confusion });
          }
          return found;
        }),
      hash: hash && (() => counter.pause(hash)),
      resources: () => watch.end(),
    },
    onStep: (metrics, resources) =>
      tell({ type: 'step', metrics: { ...metrics, saveWaitMs }, resources }),
  });
  const { early, step: last } = reached;
  if (early !== undefined && early !== 'asked') {
    tell({ type: 'early', step: last, why: early });
  }
  if (config.again !== undefined) {
    return { reached, loss: undefined }; // its steps are what it is for
  }
  const loss = await counter.pause(() => lossOfEnd({ ...parts, data: train }, last));
  saves?.prove();
  return { reached, loss };
}

/**
 * The loss of the weights after the last step on the rows that would follow. Collective.
 * @throws {DivergedError} where it is not finite
 */
export async function lossOfEnd(
  options: EvaluationOptions,
  last: number,
): Promise<number | undefined> {
  const loss = await lossAhead(options, last);
  if (loss !== undefined && !Number.isFinite(loss)) {
    throw new DivergedError(
      `The weights after step ${last} have a loss that is ${Number.isNaN(loss) ? 'not a number' : 'infinite'}: the run diverged, and they are not left as a model. Use a smaller --lr, a longer --warmup or --clip 1.`,
    );
  }
  return loss;
}

/** Whether the model writes a text after this step; after the last one it does so in any case. */
export function isSampled(
  { step, isLast }: AfterStep,
  { sampleEvery }: Pick<PreparedRun, 'sampleEvery'>,
): boolean {
  return sampleEvery !== undefined && step % sampleEvery === 0 && !isLast;
}

/** The tokens of the steps before step `end` (from 0). */
function tokensUntil(
  end: number,
  data: Pick<Dataset, 'numTokens'>,
  { batch, seq }: Pick<PreparedRun, 'batch' | 'seq'>,
): number {
  if (data.numTokens === undefined) {
    return end * batch * seq;
  }
  let sum = 0;
  for (let step = 0; step < end; step++) {
    sum += data.numTokens(step);
  }
  return sum;
}

/**
 * Ends steps that failed. Those that diverged leave no save that is not known to be good.
 * Collective.
 * @throws {DivergedError} with what became of the saves, or the error as it is
 */
export async function explainDiverged(error: unknown, saves: RunSaves | undefined): Promise<never> {
  if (!(error instanceof DivergedError) || saves === undefined) {
    throw error;
  }
  const message = `${error.message} ${await saves.setUnprovenAside()}`.trimEnd();
  throw new DivergedError(message, { cause: error });
}

/**
 * Waits for the last save.
 * @returns whether the run is over with it, as it was asked to end
 */
export async function settleSaves(
  { options }: OpenedRank,
  { saves, reached }: Pick<StepParts, 'saves'> & Pick<Ended, 'reached'>,
): Promise<boolean> {
  const { config, rank, emit } = options;
  const tell: EmitRankEvent = (event) => rank === 0 && emit(event);
  if (makesSaves(config) || reached.early === 'asked') {
    tell({ type: 'doing', what: 'writing the last save' });
  }
  if (saves !== undefined && reached.early === 'asked') {
    tell({ type: 'early', step: reached.step, why: 'asked', save: await saves.last() });
    return true;
  }
  await saves?.settle();
  return false;
}

/** Reports what the steps took, and gathers the weights that are left. Collective. */
export async function takeTrained(
  run: OpenedRank,
  { resumed, saves, watch, ended }: Omit<StepParts, 'numericClass'> & { readonly ended: Ended },
): Promise<Trained> {
  const { options, backend, strategy, stores } = run;
  const { rank, emit } = options;
  const taken = { ...stores.bytes(), ...watch.counter.counts() };
  const { kind, description } = backend.info;
  const report = { rank, device: kind, description, peakBytes: watch.peak(), ...taken };
  emit({ type: 'report', report });
  const measured = { phases: watch.phases(), ...taken };
  if (rank === 0) {
    emit({ type: 'doing', what: 'collecting the model' });
  }
  const final = await takeFinal(run, ended, resumed);
  return { state: await trainedState(strategy), final, saves, steps: watch.numSteps, measured };
}

/** Asks the first rank's clock, which starts with the steps; without a limit nothing is sent. */
function clockOf(
  { options, groups }: OpenedRank,
  { counter }: RankWatch,
): (() => Promise<boolean>) | undefined {
  const { timeLimit } = options.config;
  const { gather: group } = groups;
  if (timeLimit === undefined) {
    return undefined;
  }
  const endMs = performance.now() + 1000 * timeLimit;
  return () => {
    const isOver = group.rank === 0 && performance.now() >= endMs;
    return counter.pause(async () => (await sumOverRanks(Number(isOver), group, 'time limit')) > 0);
  };
}

/** Brings the weights back that the run leaves, where they are not those that it ended with. */
async function takeFinal(
  { options, strategy, resuming }: OpenedRank,
  { reached, loss }: Ended,
  resumed: Resumed | undefined,
): Promise<FinalWeights> {
  const { config, rank, emit } = options;
  const { step, best, validLoss } = reached;
  const last: FinalWeights =
    validLoss === undefined
      ? { step, loss, isEvaluated: false, best }
      : { step, loss: validLoss, isEvaluated: true, best };
  if (config.final === 'last' || best === undefined || best.step === step) {
    return last;
  }
  const from = resumed?.save;
  const isEarlier = from !== undefined && best.step <= from.step;
  const saves = isEarlier ? dirname(from.path) : savesOf(config.out!);
  const path = best.step === from?.step ? from.path : pathOf(saves, best.step);
  const group = resuming.background;
  const problem = await loadSave(path, { strategy, group, isWeightsAlone: true });
  if (problem === undefined) {
    return { step: best.step, loss: best.validLoss, isEvaluated: true, best };
  }
  if (rank === 0) {
    const text = `The weights of the best evaluation, of step ${best.step}, can't be had (${problem}). Those of the last step are left.`;
    emit({ type: 'warning', text });
  }
  return last;
}
