// The training of one rank: what it goes on from, its steps with evaluations and saves, and the
// weights that they leave.

import { hostname } from 'node:os';
import { dirname } from 'node:path';
import type { ProcessGroup } from '@shardweave/collectives';
import { parameterCount } from '@shardweave/nn';
import type { Backend, Device } from '@shardweave/tensor-core';
import type { RunData } from '../data/dataset.js';
import { DivergedError } from '../errors.js';
import { isSaveOf, pathOf, savesOf } from '../files/save-directory.js';
import type { BaseModel } from '../model/base-model.js';
import type { ModelState } from '../model/model-directory.js';
import { makesSaves, type PreparedRun, type RunConfig } from '../run-config.js';
import { loadResumed, loadSave, type Resumed, type ResumePlan } from '../saves/resume-run.js';
import { RunSaves } from '../saves/run-saves.js';
import type { RunTiles } from '../saves/run-tiles.js';
import { evaluatedOn, evaluationsOf } from '../saves/saved-run.js';
import { shownCards } from './choose-adapter.js';
import type { CommWatch } from './comm-watch.js';
import type { DeviceHost } from './device-host.js';
import type { EmitRankEvent, FinalWeights, RankTaken } from './events.js';
import { RankWatch } from './rank-watch.js';
import { CommCounter } from './step/comm-counter.js';
import { evaluate, lossAhead } from './step/evaluation.js';
import type { OpenedStores } from './step/opened-stores.js';
import { TrainingStep } from './step/training-step.js';
import { savingOf, trainedState } from './strategies/model-saves.js';
import type { RankGroups, Strategy } from './strategies/strategy.js';
import { sumOverRanks } from './strategies/sum-over-ranks.js';
import { type From, type Reached, trainLoop } from './train-loop.js';

/** What saves and --resume need. */
export interface SavesUse {
  /** A group apart from those of the steps, because saves are written beside steps. */
  readonly background: ProcessGroup;
  /** What the run goes on from; undefined where it is new. */
  readonly plan: ResumePlan | undefined;
  readonly base: BaseModel | undefined;
  /** The tiles of the ranks' GPUs; undefined where no rank has one. */
  readonly tiles: RunTiles | undefined;
}

export interface TrainOptions extends SavesUse {
  readonly config: PreparedRun;
  readonly rank: number;
  readonly host: DeviceHost;
  readonly emit: EmitRankEvent;
  /** Ends the run after the present step, with a save. */
  readonly wrapUp: AbortSignal;
  /** Ends the steps with its reason. */
  readonly signal: AbortSignal;
  readonly backend: Backend;
  readonly device: Device;
  readonly data: RunData;
  readonly strategy: Strategy;
  readonly groups: RankGroups;
  readonly comm: CommWatch | undefined;
  readonly stores: OpenedStores;
  /** Called with the saves, which have to be waited for when the run fails. */
  readonly onSaves: (saves: RunSaves) => void;
}

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

/**
 * Runs all steps, looks at the weights that they end with, and then gathers those that are left;
 * every rank takes part.
 * @returns undefined where the run ends early, as it was asked to
 * @throws {DivergedError} where the loss of a step, or of the weights at the end, is not finite
 */
export async function trainRank(options: TrainOptions): Promise<Trained | undefined> {
  const { config, rank, emit, backend, device, strategy, groups, comm, stores } = options;
  const numericClass = await device.numericClass();
  await tellReady(options, numericClass);
  await strategy.initialize();
  const resumed = await resume(options, numericClass);
  const counter = new CommCounter([...new Set([groups.gather, groups.reduce])]);
  const watch = new RankWatch({ rank, device, counter, comm, emit });
  const saves = await openSaves(options, { resumed, numericClass });
  const made = { resumed, saves, counter, watch };
  const { reached, loss } = await runSteps(options, made).catch(async (error: unknown) => {
    if (!(error instanceof DivergedError) || saves === undefined) {
      throw error;
    }
    const message = `${error.message} ${await saves.setUnprovenAside()}`;
    throw new DivergedError(message, { cause: error });
  });
  const tell: EmitRankEvent = (event) => rank === 0 && emit(event);
  if (makesSaves(config)) {
    tell({ type: 'doing', what: 'writing the last save' });
  }
  if (saves !== undefined && reached.early === 'asked') {
    tell({ type: 'early', step: reached.step, why: 'asked', save: await saves.last() });
    return undefined;
  }
  await saves?.settle();
  const taken = { ...stores.bytes(), ...counter.counts() };
  const { kind, description } = backend.info;
  const report = { rank, device: kind, description, peakBytes: watch.peak(), ...taken };
  emit({ type: 'report', report });
  const measured = { phases: watch.phases(), ...taken };
  tell({ type: 'doing', what: 'collecting the model' });
  const final = await takeFinal(options, { reached, loss, resumed });
  return {
    state: await trainedState(strategy, config),
    final,
    saves,
    steps: watch.numSteps,
    measured,
  };
}

/** Reports that everything is set up. */
async function tellReady(
  { config, rank, host, emit, backend, data, strategy }: TrainOptions,
  numericClass: string,
): Promise<void> {
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
      params: parameterCount(config.modelConfig),
      shardBytes: strategy.shardBytes,
      processBytes: process.resourceUsage().maxRSS * 1024,
      data: data.train.size,
      valid: data.valid?.size,
    },
  });
}

/** Loads what the run goes on from; undefined where it is new. */
async function resume(
  { config, rank, emit, strategy, background, plan, tiles }: TrainOptions,
  numericClass: string,
): Promise<Resumed | undefined> {
  const resumed =
    plan && (await loadResumed(plan, { config, strategy, group: background, numericClass, tiles }));
  if (resumed !== undefined && rank === 0) {
    const { notes, save } = resumed;
    emit({ type: 'resumed', from: { step: save?.record.step ?? 0, path: save?.path, notes } });
  }
  return resumed;
}

/** Where the steps begin; undefined for the first one. */
function fromOf(resumed: Resumed | undefined, config: PreparedRun): From | undefined {
  const record = resumed?.save?.record;
  return record && { step: record.step, updates: record.updates, ...evaluationsOf(record, config) };
}

/** The saves of the run: those that it makes, and its own one that it goes on from. */
async function openSaves(
  options: TrainOptions,
  {
    resumed,
    numericClass,
  }: { readonly resumed: Resumed | undefined; readonly numericClass: string },
): Promise<RunSaves | undefined> {
  const { config, groups } = options;
  const save = resumed?.save;
  const isOwn = save !== undefined && isSaveOf(config.outDir, save.path);
  if (!makesSaves(config) && !isOwn) {
    return undefined;
  }
  const before = save && evaluationsOf(save.record, config);
  const saves = await RunSaves.open({
    ...options,
    saving: savingOf(options.strategy, config),
    group: groups.gather,
    numericClass,
    valid: before?.valid ?? evaluatedOn(config),
    best: before?.best,
    from: isOwn ? save.step : undefined,
  });
  options.onSaves(saves);
  return saves;
}

interface RunParts {
  readonly resumed: Resumed | undefined;
  readonly saves: RunSaves | undefined;
  readonly counter: CommCounter;
  readonly watch: RankWatch;
}

/** Runs the steps, and computes the loss of their weights on the rows that would follow. */
async function runSteps(
  options: TrainOptions,
  { resumed, saves, counter, watch }: RunParts,
): Promise<{ readonly reached: Reached; readonly loss: number | undefined }> {
  const { config, rank, emit, signal, data, device, strategy, groups } = options;
  const common = { config, rank, device, strategy, group: groups.gather };
  const step = new TrainingStep({ ...common, data: data.train, onPhase: watch.onPhase });
  step.loadScaler(resumed?.save?.record.scaler);
  const { valid } = data;
  const onBatch = (done: number, total: number) => {
    if (rank === 0) {
      emit({ type: 'evaluating', done, total });
    }
  };
  const reached = await trainLoop({
    config,
    signal,
    from: fromOf(resumed, config),
    afterStep:
      saves &&
      ((progress) => counter.pause(() => saves.after({ ...progress, scaler: step.scaler }))),
    runner: {
      runStep: (stepIndex, lr) => {
        watch.begin(stepIndex);
        return step.run(stepIndex, lr);
      },
      isTimeOver: clockOf(config, { group: groups.gather, counter }),
      evaluate:
        valid &&
        (() =>
          counter.pause(() =>
            evaluate({ ...common, data: valid, onStep: onBatch, isGivenUp: saves?.isAsked }),
          )),
      resources: () => watch.end(),
    },
    onStep: (metrics, resources) => {
      if (rank === 0) {
        emit({ type: 'step', metrics, resources });
      }
    },
  });
  const { early, step: last } = reached;
  if (early !== undefined && early !== 'asked' && rank === 0) {
    emit({ type: 'early', step: last, why: early });
  }
  const loss = await counter.pause(() => lossAhead({ ...common, data: data.train }, last));
  if (loss !== undefined && !Number.isFinite(loss)) {
    throw new DivergedError(
      `The weights after step ${last} have a loss that is ${Number.isNaN(loss) ? 'not a number' : 'infinite'}: the run diverged, and they are not left as a model. Use a smaller --lr, a longer --warmup or --clip 1.`,
    );
  }
  saves?.prove();
  return { reached, loss };
}

/** Asks the first rank's clock, which starts with the steps; without a limit nothing is sent. */
function clockOf(
  { timeLimitMs }: RunConfig,
  { group, counter }: { readonly group: ProcessGroup; readonly counter: CommCounter },
): (() => Promise<boolean>) | undefined {
  if (timeLimitMs === undefined) {
    return undefined;
  }
  const endMs = performance.now() + timeLimitMs;
  return () => {
    const isOver = group.rank === 0 && performance.now() >= endMs;
    return counter.pause(async () => (await sumOverRanks(Number(isOver), group, 'time limit')) > 0);
  };
}

/** Brings the weights back that the run leaves, where they are not those that it ended with. */
async function takeFinal(
  { config, rank, emit, strategy, background }: TrainOptions,
  {
    reached,
    loss,
    resumed,
  }: { readonly reached: Reached; readonly loss: number | undefined } & Pick<RunParts, 'resumed'>,
): Promise<FinalWeights> {
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
  const saves = isEarlier ? dirname(from.path) : savesOf(config.outDir!);
  const path = best.step === from?.step ? from.path : pathOf(saves, best.step);
  const problem = await loadSave(path, {
    ...{ strategy, group: background, isWeightsAlone: true },
    lora: config.lora,
  });
  if (problem === undefined) {
    return { step: best.step, loss: best.validLoss, isEvaluated: true, best };
  }
  if (rank === 0) {
    const text = `The weights of the best evaluation, of step ${best.step}, can't be had (${problem}). Those of the last step are left.`;
    emit({ type: 'warning', text });
  }
  return last;
}
