// One rank from start to end: device, data, model, steps, and the results.

import { join } from 'node:path';
import type { ProcessGroup } from '@shardweave/collectives';
import { type Backend, Device, Trace } from '@shardweave/tensor-core';
import { openData } from '../data/dataset.js';
import { loadTokenizer } from '../data/tokenizer.js';
import { kindOf } from '../device-choice.js';
import { resultOf } from '../files/run-files.js';
import { baseModelOf } from '../model/base-model.js';
import { leaveModel } from '../model/leave-model.js';
import { trainedFiles } from '../model/write-trained.js';
import { checkRank } from '../plan/check-run.js';
import { requireRoomOf } from '../plan/require-room.js';
import { roomHere } from '../plan/room.js';
import { isWatched, makesSaves, type PreparedRun, type RunConfig } from '../run-config.js';
import { planResume } from '../saves/resume-run.js';
import type { RunSaves } from '../saves/run-saves.js';
import { agreeOnTiles } from '../saves/run-tiles.js';
import { describeSystemError } from '../system-error.js';
import { CommWatch } from './comm-watch.js';
import type { DeviceHost } from './device-host.js';
import type { EmitRankEvent } from './events.js';
import { measureProducts } from './measure-products.js';
import { gatheredBytes, sampleLength, sampleText } from './sample-text.js';
import { OpenedStores } from './step/opened-stores.js';
import { COMPUTE_DTYPES } from './strategies/model-parts.js';
import { openStore } from './strategies/open-rest.js';
import { openRankGroups, openStrategy } from './strategies/open-strategy.js';
import type { RankGroups, Strategy } from './strategies/strategy.js';
import { type SavesUse, type Trained, trainRank } from './train-rank.js';

const NO_TEXT =
  'No text is written at the end: each of its tokens would gather the whole model. The command generate writes one.';

export interface RankOptions {
  readonly config: PreparedRun;
  readonly rank: number;
  /** The rank's number among those of its host. The default is `rank`: all are on one host. */
  readonly localRank?: number;
  /** The group of all ranks, which even a single rank has. The rank closes it. */
  readonly world: ProcessGroup;
  readonly host: DeviceHost;
  readonly emit: EmitRankEvent;
  /**
   * Ends the run after the present step, with a save. Without --save-every it is aborted only
   * behind the last step, and then only ends a wait for room on a disk, or gives up a text.
   */
  readonly wrapUp: AbortSignal;
  /** Ends the rank with its reason, as soon as what it waits for has been called off. */
  readonly signal: AbortSignal;
}

/** Trains. An error here reaches the other ranks through their groups. */
export async function runRank(options: RankOptions): Promise<void> {
  const { world, signal } = options;
  const abort = () => world.abort('the run was stopped');
  signal.addEventListener('abort', abort, { once: true });
  let saves: RunSaves | undefined;
  try {
    signal.throwIfAborted();
    await runToEnd(options, (opened) => {
      saves = opened;
    });
    await world.close();
  } catch (error) {
    world.abort(error instanceof Error ? error.message : String(error));
    // What is being written ends with the ranks, so that nothing writes into the run's directory
    // after its end.
    await saves?.settle().catch(() => undefined);
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

async function runToEnd(options: RankOptions, onSaves: (saves: RunSaves) => void): Promise<void> {
  const { config, rank, localRank = rank, host, emit } = options;
  const { threads } = config;
  const backend = await host.open(config.devices[rank]!, { threads, localRank });
  if (config.devices.some((device) => kindOf(device) === 'webgpu')) {
    await measureProducts(backend, {
      world: options.world,
      steps: config.steps,
      isResumed: config.resume !== undefined,
      dtype: COMPUTE_DTYPES[config.precision],
      onMeasure: () => emit({ type: 'doing', what: "measuring the GPU's products" }),
    });
  }
  if (backend.info.kind === 'webgpu') {
    // The command has checked the ranks on cpu devices, and leaves drivers to its ranks.
    await requireRoomOf(config, { rank, model: backend, room: roomHere(config, 'webgpu') });
    await backend.preparePlanned?.();
  }
  const trace = config.traceFile === undefined ? undefined : new Trace({ rank });
  if (trace !== undefined) {
    backend.trace((event) => trace.add(event));
  }
  const device = new Device(backend, {
    seed: config.seed,
    ...(trace === undefined ? {} : { trace }),
  });
  await using data = await openData(config, config.tokens);
  const comm = isWatched(config) ? new CommWatch(backend) : undefined;
  const groups = await openGroups(options, { trace, comm });
  const use = await openSavesUse(config, groups, backend);
  const stores = new OpenedStores();
  const strategy = await openStrategy({
    device,
    config,
    groups,
    openStore: stores.opening(openStore),
  });
  let trained: Trained | undefined;
  try {
    const made = { backend, device, data, strategy, groups, comm, stores };
    trained = await trainRank({ ...options, ...use, ...made, onSaves });
    strategy.optimizer.dispose();
    if (trained !== undefined) {
      await leaveResults(options, { device, strategy, trained });
    }
  } catch (error) {
    await strategy.dispose().catch(() => undefined); // the first failure is the one to report
    throw error;
  }
  await strategy.dispose();
  device.dispose();
  if (config.isChecked && trained !== undefined) {
    emit({ type: 'check', check: await checkRank(config, { rank, backend, host, ...trained }) });
  }
  if (trace !== undefined) {
    emitTrace(emit, trace);
  }
}

/** The group as over a slow network. Few runs ask for one, so it is loaded for those alone. */
async function delayed(group: ProcessGroup, delayMs: number): Promise<ProcessGroup> {
  const { withDelay } = await import('@shardweave/collectives/testing');
  return withDelay(group, delayMs);
}

async function openGroups(
  options: RankOptions,
  { trace, comm }: { readonly trace: Trace | undefined; readonly comm: CommWatch | undefined },
): Promise<RankGroups> {
  const { config, world } = options;
  const gather = config.injectDelayMs > 0 ? await delayed(world, config.injectDelayMs) : world;
  const own = new Set([gather.id]);
  if (trace !== undefined || comm !== undefined) {
    gather.onTrace = (call) => {
      const { name, startMs, endMs, bytes, seq, tag } = call;
      const args = { bytes, seq, ...(tag === undefined ? {} : { unit: tag }) };
      trace?.add({ name, track: 'collectives', startMs, endMs, args });
      if (own.has(call.group)) {
        comm?.onCall(call); // saves have a group of their own, and no step waits for it
      }
    };
  }
  const groups = await openRankGroups(gather);
  own.add(groups.reduce.id);
  return groups;
}

/**
 * Opens what saves and --resume need, before the model is made: a save of another run is refused at
 * once.
 */
async function openSavesUse(
  config: PreparedRun,
  { gather }: RankGroups,
  backend: Backend,
): Promise<SavesUse> {
  const { resume, lora } = config;
  const isUsed = makesSaves(config) || resume !== undefined;
  const background = isUsed && gather.worldSize > 1 ? await gather.split(0) : gather;
  const base = isUsed && lora !== undefined ? await baseModelOf(config) : undefined;
  const plan = await planResume(config, { group: background, base });
  const saved = plan?.saves[0]?.record.tiles;
  const tiles = await agreeOnTiles(backend, { config, group: gather, saved });
  return { background, base, plan, tiles };
}

interface Made {
  readonly device: Device;
  readonly strategy: Strategy;
  readonly trained: Trained;
}

function directoryOf({ model }: RunConfig): string | undefined {
  return model.kind === 'directory' ? model.path : undefined;
}

/** Writes the model and shows what it has learnt. Collective. */
async function leaveResults(options: RankOptions, made: Made): Promise<void> {
  const { config, rank, emit, wrapUp, signal } = options;
  const { state, final, saves } = made.trained;
  if (rank === 0 && config.outDir !== undefined) {
    emit({ type: 'doing', what: 'writing the model' });
    const files = await trainedFiles({ config, state });
    const path = join(config.outDir, resultOf(config));
    const isThere = await leaveModel(path, files, { emit, wrapUp, signal });
    emit({ type: 'final', final });
    if (isThere) {
      await saves?.removeOwn().catch((error: unknown) => {
        emit({ type: 'warning', text: `A save can't be removed (${describeSystemError(error)}).` });
      });
    }
  }
  try {
    await showText(options, made);
  } catch (error) {
    options.signal.throwIfAborted();
    if (rank === 0) {
      const { message } = error as Error;
      emit({ type: 'warning', text: `The text at the end is left out: ${message}` });
    }
  }
}

/** Shows a text of the trained model, unless that takes too long. Collective. */
async function showText(options: RankOptions, { device, strategy }: Made): Promise<void> {
  const { config, rank, emit, wrapUp } = options;
  const { text } = strategy;
  if (config.isQuiet || (rank > 0 && text.group === undefined)) {
    return;
  }
  const maxTokens = sampleLength(config.modelConfig, gatheredBytes(config, text));
  if (rank === 0) {
    emit(
      maxTokens === 0
        ? { type: 'warning', text: NO_TEXT }
        : { type: 'doing', what: 'writing a text' },
    );
  }
  if (maxTokens === 0) {
    return;
  }
  const sample = await sampleText(text, {
    device,
    config,
    maxTokens,
    openTokenizer: () => loadTokenizer(config.tokenizer, directoryOf(config)),
    isGivenUp: () => wrapUp.aborted,
  });
  if (sample !== undefined) {
    emit({ type: 'sample', ...sample });
  }
}

/**
 * Emits the trace with times since the epoch, which all processes share; each has a clock of its
 * own.
 */
function emitTrace(emit: EmitRankEvent, trace: Trace): void {
  const { timeOrigin } = performance;
  const events = trace.events.map((event) => ({
    ...event,
    startMs: event.startMs + timeOrigin,
    endMs: event.endMs + timeOrigin,
  }));
  emit({ type: 'trace', rank: trace.rank, events });
}
