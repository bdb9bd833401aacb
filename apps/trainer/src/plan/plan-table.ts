// The runs of one model and one set of rows by strategy: what each takes, and whether it fits here.

import type { DryModel } from '@shardweave/tensor-core';
import { numMicroSteps } from '../data/row-order.js';
import { STRATEGIES } from '../flags/train-flags.js';
import { formatBytes, formatMs } from '../format.js';
import type { RunConfig, StrategyName } from '../run-config.js';
import type { DryRun } from './dry-run.js';
import { movedTo } from './fit-suggestions.js';
import { type LeftBytes, leftBytes } from './left-bytes.js';
import type { StepClock } from './rates.js';
import { tryRun } from './require-room.js';
import { hostNeed, isTight, type Room } from './room.js';

export interface PlanRow {
  readonly strategy: StrategyName;
  readonly ranks: number;
  /** The reason why it is impossible; undefined where it is possible. */
  readonly complaint: string | undefined;
  /** Whether it fits, but close to the limit of some memory. */
  readonly isTight: boolean;
  /**
   * The dry run of rank 0, which has at least as much as any other; undefined where not even that
   * is known.
   */
  readonly run: DryRun | undefined;
  /** The bytes of all ranks on this host. */
  readonly hostBytes: number | undefined;
  readonly stepMs: number | undefined;
  /** What a rank's bytes of a step take on a link between hosts; undefined where none is given. */
  readonly linkMs: number | undefined;
  /** What the run leaves under --out. */
  readonly left: LeftBytes;
  /** With --gradient-groups, the forwards and backwards of a rank in a step. */
  readonly calls?: number | undefined;
}

export interface PlanOptions {
  readonly model: DryModel;
  readonly clock: StepClock | undefined;
  /** The rate of a link between hosts, in bits a second. */
  readonly linkBits?: number | undefined;
  /** The room for a run of so many ranks. */
  room(config: RunConfig): Room;
}

/** One row per strategy, the one asked for with its own number of ranks. */
export async function planRows(config: RunConfig, options: PlanOptions): Promise<PlanRow[]> {
  const rows: PlanRow[] = [];
  for (const strategy of STRATEGIES) {
    rows.push(await planRow(asStrategy(config, strategy), options));
  }
  return rows;
}

async function planRow(config: RunConfig, options: PlanOptions): Promise<PlanRow> {
  const { model, clock, linkBits } = options;
  const { strategy, ranks, gradientGroups } = config;
  const room = options.room(config);
  const isTimed = clock !== undefined;
  const isRefused = strategy === 'offload' && gradientGroups !== undefined;
  const { complaint, run } = isRefused
    ? { complaint: `it takes no --gradient-groups ${gradientGroups}`, run: undefined }
    : await tryRun(config, { rank: 0, model, room, isTimed });
  return {
    strategy,
    ranks,
    complaint,
    isTight: complaint === undefined && isTight(run, room),
    run,
    hostBytes: run && hostNeed(run, room),
    stepMs: run && (await clock?.stepMs(run, config)),
    linkMs: run && linkBits && (run.laterStep.bytesSent * 8000) / linkBits,
    left: await leftBytes(config),
    calls: gradientGroups && numMicroSteps(config),
  };
}

function asStrategy(config: RunConfig, strategy: StrategyName): RunConfig {
  const isAlone = strategy === 'single' || strategy === 'offload';
  const isOffload = strategy === 'offload';
  return {
    ...movedTo(config, strategy, isAlone ? 1 : Math.max(2, config.ranks)),
    offloadDir: isOffload || strategy === 'fsdp' ? config.offloadDir : undefined,
    deviceBudget: isOffload ? config.deviceBudget : undefined,
    slices: isOffload ? config.slices : undefined,
    microBatches: isOffload ? config.microBatches : 1,
  };
}

/** The table for people: one line per strategy, and below it why some are impossible. */
export function planText(rows: readonly PlanRow[]): string {
  const head = ['', 'fits', 'a rank', 'parameter', 'optimizer', 'gradient', 'activation', 'rest'];
  const hasLink = rows.some(({ linkMs }) => linkMs !== undefined);
  const table = rows.map((row) => cellsOf(row, hasLink));
  const times = [...(hasLink ? ['on the link'] : []), 'a step'];
  const all = [[...head, 'host', 'disk', 'wire a step', ...times], ...table];
  const widths = all[0]!.map((_, column) => Math.max(...all.map((row) => row[column]!.length)));
  const lines = all.map((row) =>
    row
      .map((cell, i) => (i < 2 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)))
      .join('  ')
      .trimEnd(),
  );
  const reasons = [
    ...rows.flatMap(({ strategy, complaint }) =>
      complaint === undefined ? [] : [`${strategy}: ${complaint}.`],
    ),
    ...groupCosts(rows),
    ...linkAdvice(rows),
  ];
  return [...lines, ...(reasons.length > 0 ? ['', ...reasons] : []), ''].join('\n');
}

/** What groups of rows cost where parameters are gathered. */
function groupCosts(rows: readonly PlanRow[]): string[] {
  return rows.flatMap(({ strategy, calls = 1 }) =>
    strategy === 'fsdp' && calls > 1
      ? [
          `fsdp: in groups a rank makes ${calls} calls a step, and each gathers and reduces all parameters; --no-reshard gathers them once.`,
        ]
      : [],
  );
}

/** What keeps the link least busy, of that which fits. */
function linkAdvice(rows: readonly PlanRow[]): string[] {
  const onLink = rows.flatMap((row) =>
    row.complaint === undefined && row.linkMs ? [{ ...row, linkMs: row.linkMs }] : [],
  );
  const [least, ...others] = onLink.toSorted((a, b) => a.linkMs - b.linkMs);
  if (least === undefined) {
    return [];
  }
  const textOf = (row: (typeof onLink)[number]) =>
    `${nameOf(row)} ${formatMs(row.linkMs)} (${formatBytes(row.run!.laterStep.bytesSent)})`;
  const rest = others.length === 0 ? '' : `; ${others.map(textOf).join('; ')}`;
  const alone = rows
    .filter(({ complaint, ranks }) => complaint === undefined && ranks === 1)
    .map(nameOf);
  const none =
    alone.length === 0
      ? ''
      : ` ${alone.join(' and ')} ${alone.length === 1 ? 'needs' : 'need'} no link.`;
  return [`Least on the link in a step: ${textOf(least)}${rest}.${none}`];
}

function nameOf({ strategy, ranks }: PlanRow): string {
  return ranks === 1 ? strategy : `${strategy} x ${ranks}`;
}

function cellsOf(row: PlanRow, hasLink: boolean): string[] {
  const { run, complaint, linkMs } = row;
  const name = nameOf(row);
  const fits = complaint !== undefined ? 'no' : row.isTight ? 'tight' : 'yes';
  if (run === undefined) {
    return [name, fits, ...Array.from({ length: hasLink ? 11 : 10 }, () => '')];
  }
  const { parameter, optimizer, gradient, activation, gathered, staging } = run.peakBytes;
  const bytes = [run.bufferBytes, parameter, optimizer, gradient, activation, gathered + staging];
  const rests = [row.hostBytes ?? 0, run.diskBytes, run.laterStep.bytesSent];
  return [
    name,
    fits,
    ...[...bytes, ...rests].map((count) => (count === 0 ? '-' : formatBytes(count))),
    ...(hasLink ? [linkMs ? formatMs(linkMs) : '-'] : []),
    row.stepMs === undefined ? '-' : formatMs(row.stepMs),
  ];
}
