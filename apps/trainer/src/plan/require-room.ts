// The first second of a run: a run that can't fit is refused before anything is made, with flags
// that would make it fit.

import { OffloadBudgetError } from '@shardweave/offload';
import { cpuInfo, type DryModel, LimitError } from '@shardweave/tensor-core';
import { UsageError } from '../errors.js';
import { formatBytes } from '../format.js';
import type { RunConfig } from '../run-config.js';
import { type DryRun, dryRun } from './dry-run.js';
import { fitSuggestions, type Way } from './fit-suggestions.js';
import { complaintOf, hostNeed, type Room, roomHere } from './room.js';

/** The most suggestions that are printed. */
const TOLD = 3;

export interface TryOptions {
  readonly rank: number;
  /** The rank's device, open or not. */
  readonly model: DryModel;
  readonly room: Room;
  /** Whether it is enough to know that it does not fit; what it takes is then left out. */
  readonly isBrief?: boolean;
  /** See DryRunOptions. */
  readonly isTimed?: boolean;
}

/** The result of a dry run: what the run would take, or why it is impossible. */
export type Trial =
  | { readonly complaint: undefined; readonly run: DryRun }
  | { readonly complaint: string; readonly run: DryRun | undefined };

/** Runs dry, and tells what makes the run impossible. */
export async function tryRun(config: RunConfig, options: TryOptions): Promise<Trial> {
  const { rank, model, room, isBrief = false, isTimed = false } = options;
  const { modelConfig, strategy } = config;
  if (strategy === 'offload' && 'isSequential' in modelConfig && !modelConfig.isSequential) {
    return { run: undefined, complaint: 'a module that is no Sequential has no layers to slice' };
  }
  const { deviceBytes = Number.POSITIVE_INFINITY, hostBytes, ranksHere } = room;
  const limits = { deviceBytes, hostBytes: hostBytes / ranksHere };
  try {
    const run = await dryRun(config, { rank, model, isTimed, ...(isBrief ? { limits } : {}) });
    const complaint = complaintOf(run, room);
    return complaint === undefined ? { complaint, run } : { complaint, run };
  } catch (error) {
    if (error instanceof OffloadBudgetError) {
      const { budgetBytes, requiredBytes, moduleName } = error;
      const complaint = `--device-budget ${budgetBytes} is less than the ${requiredBytes} bytes that '${moduleName}' takes`;
      return { run: undefined, complaint };
    }
    if (error instanceof LimitError) {
      if (config.deviceBudget !== undefined && error.limitBytes === config.deviceBudget) {
        return { run: undefined, complaint: `--device-budget ${config.deviceBudget} is too small` };
      }
      return { run: undefined, complaint: (error as Error).message.replace(/\.$/, '') };
    }
    throw error;
  }
}

/**
 * Refuses a run for which its rank 0 has no room on a cpu device. A GPU's memory is known only to
 * the GPU.
 * @param room default: that of this machine
 * @throws {UsageError} with what was missing and the flags that would help
 */
export async function requireRoom(config: RunConfig, room?: Room): Promise<void> {
  const rank = config.device.indexOf('cpu');
  if (rank < 0) {
    return;
  }
  await requireRoomOf(config, {
    rank,
    model: { info: cpuInfo(config) },
    room: room ?? roomHere(config, 'cpu'),
  });
}

/** Refuses a run for which one rank has no room, whatever its device is. */
export async function requireRoomOf(config: RunConfig, options: TryOptions): Promise<void> {
  const { complaint } = await tryRun(config, options);
  if (complaint === undefined) {
    return;
  }
  const ways = await fittingWays(config, options);
  const told =
    ways.length === 0
      ? 'Nothing that was tried fits here: use a smaller --model, a shorter --seq, or --lora-rank, which trains adapters alone.'
      : `What fits: ${ways.join('; or ')}.`;
  throw new UsageError(`room: the run does not fit: ${complaint}. ${told}`);
}

/** For a few kinds of change, the smallest one that makes the run fit. */
async function fittingWays(config: RunConfig, options: TryOptions): Promise<string[]> {
  const told: string[] = [];
  for (const kind of fitSuggestions(config)) {
    const way = await leastThatFits(kind, options);
    if (way !== undefined) {
      told.push(way);
    }
    if (told.length === TOLD) {
      break;
    }
  }
  return told;
}

/**
 * Tries the first way, and then the last one: where the last does not fit, none of those between
 * does.
 */
async function leastThatFits(
  [first, ...others]: readonly Way[],
  options: TryOptions,
): Promise<string | undefined> {
  const least = first && (await fit(first, options));
  const last = others.at(-1);
  if (least !== undefined || last === undefined) {
    return least;
  }
  const most = await fit(last, options);
  if (most === undefined) {
    return undefined;
  }
  for (const way of others.slice(0, -1)) {
    const told = await fit(way, options);
    if (told !== undefined) {
      return told;
    }
  }
  return most;
}

/** The way with its need, where it fits. */
async function fit({ flags, config }: Way, { model, room }: TryOptions) {
  const { transport } = config;
  const ranksHere = transport === 'mpi' ? 1 : config.ranks;
  const changed = { ...room, ranksHere };
  const { complaint, run } = await tryRun(config, { rank: 0, model, room: changed, isBrief: true });
  if (complaint !== undefined) {
    return undefined;
  }
  const rests =
    run.diskBytes > 0
      ? `, ${formatBytes(run.diskBytes)} on disk`
      : run.hostBytes > 0
        ? `, ${formatBytes(hostNeed(run, changed))} of the host in all`
        : '';
  return `${flags} (${formatBytes(run.bufferBytes)} a rank${rests})`;
}
