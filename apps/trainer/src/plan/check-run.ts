// Does the work of --check: shows what the plan says of a run beside what the run took. Bytes must
// be equal, because the dry run executes the run's own code; the time is an estimate.

import { type Backend, MEMORY_TAGS } from '@shardweave/tensor-core';
import { formatBytes, formatMs } from '../format.js';
import type { DeviceHost } from '../rank/device-host.js';
import type { RankCheck, RankTaken } from '../rank/events.js';
import { commCounts } from '../rank/step/comm-counter.js';
import type { RunConfig } from '../run-config.js';
import { type DryRun, dryRun } from './dry-run.js';
import { coresOf, openStepClock } from './rates.js';

export interface CheckOptions {
  readonly rank: number;
  /** The run's own backend, which the run has finished with. */
  readonly backend: Backend;
  readonly host: DeviceHost;
  /** The number of steps of this command. */
  readonly steps: number;
  readonly measured: RankTaken;
}

/** Runs a rank's share dry. Rank 0 also measures the device. */
export async function checkRank(config: RunConfig, options: CheckOptions): Promise<RankCheck> {
  const { rank, backend, steps, measured } = options;
  const run = await dryRun(config, { rank, model: backend, isTimed: rank === 0 });
  const { hostBytes, diskBytes, firstStep, laterStep } = run;
  const phases = steps > 1 ? run.phases : [];
  const counts = commCounts((name) => firstStep[name] + (steps - 1) * laterStep[name]);
  return {
    rank,
    steps,
    planned: { phases, hostBytes, diskBytes, ...counts },
    measured,
    stepMs: rank === 0 ? await stepMsOn(config, options, run) : undefined,
  };
}

async function stepMsOn(
  config: RunConfig,
  { backend, host }: CheckOptions,
  run: DryRun,
): Promise<number> {
  const isCpu = backend.info.kind === 'cpu';
  const options = { threads: coresOf(config), products: config.products };
  using clock = await openStepClock(isCpu ? await host.open('cpu', options) : backend);
  return await clock.stepMs(run, config);
}

/** The two numbers of one quantity of one rank. */
interface Pair {
  readonly rank: number;
  readonly planned: number;
  readonly taken: number;
}

/**
 * One line per quantity, with the numbers of the rank that took most, or of the first rank that
 * took something other than planned.
 * @param measuredMs the time of a usual step
 */
export function checkLines(checks: readonly RankCheck[], measuredMs: number): string[] {
  const bytes = quantitiesOf(checks).map(([name, pairs]) => {
    const differing = pairs.find(({ planned, taken }) => planned !== taken);
    const { rank, planned, taken } =
      differing ?? pairs.reduce((most, pair) => (pair.taken > most.taken ? pair : most));
    const verdict =
      differing === undefined
        ? 'equal'
        : `rank ${rank}: ${taken - planned > 0 ? '+' : ''}${taken - planned} bytes`;
    return [name, formatBytes(planned), formatBytes(taken), verdict] as const;
  });
  const planned = checks[0]?.stepMs;
  const rows = [['check', 'planned', 'taken', ''] as const, ...bytes];
  if (planned !== undefined) {
    const verdict = percent(measuredMs / planned);
    rows.push(['a step', formatMs(planned), formatMs(measuredMs), verdict]);
  }
  return rows.map(([name, a, b, verdict]) =>
    `${name.padEnd(20)} ${a.padStart(9)} ${b.padStart(9)}  ${verdict}`.trimEnd(),
  );
}

/**
 * The quantities by phase and tag, on the wire and at rest; those that no rank has are left out.
 */
function quantitiesOf(checks: readonly RankCheck[]): [string, Pair[]][] {
  const names = new Map<string, Pair[]>();
  const add = (name: string, pair: Pair) => names.set(name, [...(names.get(name) ?? []), pair]);
  for (const { rank, planned, measured } of checks) {
    for (const { phase, bytes } of planned.phases) {
      const taken = measured.phases.find((measuredPhase) => measuredPhase.phase === phase)?.bytes;
      for (const tag of ['total', ...MEMORY_TAGS] as const) {
        const name = tag === 'total' ? phase : `  ${tag} (${phase})`;
        add(name, { rank, planned: bytes[tag], taken: taken?.[tag] ?? 0 });
      }
    }
    for (const [name, of] of [
      ['sent', 'bytesSent'],
      ['received', 'bytesReceived'],
      ['host', 'hostBytes'],
      ['disk', 'diskBytes'],
    ] as const) {
      add(name, { rank, planned: planned[of], taken: measured[of] });
    }
  }
  return [...names].filter(([name, pairs]) =>
    // A tag is shown only where it is not as planned.
    pairs.some(({ planned, taken }) =>
      name.startsWith(' ') ? planned !== taken : planned + taken > 0,
    ),
  );
}

function percent(ratio: number): string {
  return `${ratio >= 1 ? '+' : ''}${Math.round(100 * (ratio - 1))} %`;
}
