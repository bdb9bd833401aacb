// What a rank opens before its model: its device, its groups, and what saves and --resume need.

import type { ProcessGroup } from '@shardweave/collectives';
import { type Backend, Device, Trace } from '@shardweave/tensor-core';
import type { RunData } from '../data/dataset.js';
import { kindOf } from '../device-choice.js';
import { type BaseModel, baseModelOf } from '../model/base-model.js';
import { requireRoomOf } from '../plan/require-room.js';
import { roomHere } from '../plan/room.js';
import {
  COMPUTE_DTYPES,
  isWatched,
  makesSaves,
  type PreparedRun,
  savesAtStop,
} from '../run-config.js';
import { planResume, type ResumePlan } from '../saves/resume-run.js';
import { agreeOnTiles, type RunTiles } from '../saves/run-tiles.js';
import { CommWatch } from './comm-watch.js';
import type { DeviceHost } from './device-host.js';
import type { EmitRankEvent } from './events.js';
import { measureProducts } from './measure-products.js';
import type { OpenedStores } from './step/opened-stores.js';
import { openRankGroups } from './strategies/open-strategy.js';
import type { RankGroups, TaskStrategy } from './strategies/strategy.js';

/** What a rank is given. */
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

/** A rank with all that it has opened, ready for its steps. */
export interface OpenedRank {
  readonly options: RankOptions;
  readonly backend: Backend;
  readonly device: Device;
  readonly data: RunData;
  readonly groups: RankGroups;
  /** Undefined where nobody watches the run. */
  readonly comm: CommWatch | undefined;
  readonly resuming: Resuming;
  readonly strategy: TaskStrategy;
  readonly stores: OpenedStores;
}

/** What saves and --resume need. */
export interface Resuming {
  /** A group apart from those of the steps, because saves are written beside steps. */
  readonly background: ProcessGroup;
  /** What the run goes on from; undefined where it is new. */
  readonly plan: ResumePlan | undefined;
  readonly base: BaseModel | undefined;
  /** The tiles of the ranks' GPUs; undefined where no rank has one. */
  readonly tiles: RunTiles | undefined;
}

/** Opens the rank's device, with measured products, where the run has room on it. Collective. */
export async function openBackend(options: RankOptions): Promise<Backend> {
  const { config, rank, localRank = rank, world, host, emit } = options;
  const { threads, products } = config;
  const backend = await host.open(config.device[rank]!, { threads, products, localRank });
  if (config.device.some((device) => kindOf(device) === 'webgpu')) {
    await measureProducts(backend, {
      world,
      steps: config.steps,
      isResumed: (config.resume ?? config.again) !== undefined,
      dtype: COMPUTE_DTYPES[config.precision],
      onMeasure: () => emit({ type: 'doing', what: "measuring the GPU's products" }),
    });
  }
  if (backend.info.kind === 'webgpu') {
    // The command has checked the ranks on cpu devices, and leaves drivers to its ranks.
    await requireRoomOf(config, { rank, model: backend, room: roomHere(config, 'webgpu') });
    await backend.preparePlanned?.();
  }
  return backend;
}

/** The rank's device on a backend, and the trace of both where the run has one. */
export function openDevice(
  backend: Backend,
  { config, rank }: RankOptions,
): { readonly device: Device; readonly trace: Trace | undefined } {
  const { seed } = config;
  if (config.trace === undefined) {
    return { device: new Device(backend, { seed }), trace: undefined };
  }
  const trace = new Trace({ rank });
  backend.trace((event) => trace.add(event));
  return { device: new Device(backend, { seed, trace }), trace };
}

/** Opens the groups of the steps, whose calls are traced and watched. Collective. */
export async function openGroups(
  { config, world }: RankOptions,
  { backend, trace }: { readonly backend: Backend; readonly trace: Trace | undefined },
): Promise<Pick<OpenedRank, 'groups' | 'comm'>> {
  const comm = isWatched(config) ? new CommWatch(backend) : undefined;
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
  return { groups, comm };
}

/** The group as over a slow network. Few runs ask for one, so it is loaded for those alone. */
async function delayed(group: ProcessGroup, delayMs: number): Promise<ProcessGroup> {
  const { withDelay } = await import('@shardweave/collectives/testing');
  return withDelay(group, delayMs);
}

/**
 * Opens what saves and --resume need, before the model is made: a save of another run is refused at
 * once. Collective.
 */
export async function openResuming(
  config: PreparedRun,
  { gather }: RankGroups,
  backend: Backend,
): Promise<Resuming> {
  const { resume, lora, firstSave } = config;
  const isSaved = makesSaves(config) || savesAtStop(config);
  const isUsed = isSaved || (resume ?? firstSave) !== undefined;
  const background = isUsed && gather.worldSize > 1 ? await gather.split(0) : gather;
  const base = isUsed && lora !== undefined ? await baseModelOf(config) : undefined;
  const plan = await planResume(config, { group: background, base });
  const saved = plan?.saves[0]?.record.tiles ?? config.again?.tiles;
  const tiles = await agreeOnTiles(backend, { config, group: gather, saved });
  return { background, base, plan, tiles };
}
