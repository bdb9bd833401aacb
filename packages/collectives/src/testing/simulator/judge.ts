// What must hold when a simulated job has come to rest: no rank hangs, all ranks know of a failure
// in time, and errors blame what did happen.

import type { Endpoint } from '../../endpoint/endpoint.js';
import {
  type Blame,
  blameOf,
  describeFault,
  type Fault,
  isHarmless,
  noticedWithinMs,
} from './faults.js';
import type { RankRun } from './rank-run.js';
import { MAX_SILENCE_MS, type SimulatedNetwork } from './simulated-network.js';

/** The time in which ranks that disagree may tell what they called; see mismatch-inquiry.ts. */
const INQUIRY_MS = 300;

/** The number of messages, one after another, from the first rank that knows to the last. */
const HOPS = 4;

/** The rounding error of sums of times. */
const EPSILON_MS = 1e-3;

export interface Evidence {
  readonly runs: readonly RankRun[];
  readonly endpoints: readonly Endpoint[];
  /** The time at which each rank's endpoint failed or closed. */
  readonly failedMs: readonly (number | undefined)[];
  /** The faults that took place, with their times. */
  readonly startMs: ReadonlyMap<Fault, number>;
  readonly network: SimulatedNetwork;
}

/** All that is wrong, in words. */
export function judge(evidence: Evidence): string[] {
  const alive = evidence.runs.map((_, rank) => rank).filter((rank) => isAlive(evidence, rank));
  return [
    ...alive.flatMap((rank) => judgeEnd(evidence, rank)),
    ...judgeBlames(evidence, alive),
    ...judgeSpread(evidence, alive),
  ];
}

function isAlive({ network }: Evidence, rank: number): boolean {
  const process = network.processes[rank]!;
  return !process.isDead && !process.isBlocked;
}

/** Checks that all calls are settled, no timer is left, and no buffer was touched. */
function judgeEnd({ runs, endpoints, network }: Evidence, rank: number): string[] {
  const run = runs[rank]!;
  const problems: string[] = [];
  run.checkBuffers();
  if (!run.isDone) {
    const pending = run.pending.length === 0 ? 'its close()' : run.pending.join(', ');
    problems.push(`rank ${rank} hangs, pending: ${pending}`);
  } else if (endpoints[rank]!.failure === undefined) {
    problems.push(`rank ${rank} is neither closed nor failed`);
  }
  const { numTimers } = network.processes[rank]!;
  if (numTimers > 0) {
    problems.push(`rank ${rank} still has ${numTimers} timers`);
  }
  return problems;
}

function judgeBlames({ runs, startMs }: Evidence, alive: readonly number[]): string[] {
  const faults = [...startMs.keys()];
  const blames = faults.map(blameOf).filter((blame): blame is Blame => blame !== undefined);
  return alive.flatMap((rank) => {
    const { error } = runs[rank]!;
    if (error === undefined) {
      return [];
    }
    const hasLeft = faults.some((fault) => fault.kind === 'leave' && fault.rank === rank);
    const isFair = blames.some(
      ({ code, origins }) =>
        error.code === code && (origins === null || origins.includes(error.originRank)),
    );
    return isFair || (hasLeft && error.code === 'CLOSED')
      ? []
      : [`rank ${rank} blames what did not happen: ${error.code}, "${error.message}"`];
  });
}

/** Checks the time from a fault to the first rank that knows, and from there to the last. */
function judgeSpread(evidence: Evidence, alive: readonly number[]): string[] {
  const { startMs, failedMs, network, endpoints } = evidence;
  const faults = [...startMs.keys()].filter((fault) => fault.kind !== 'busy');
  // A rank that stands still for a while learns of it when it goes on.
  let spreadMs = HOPS * network.maxDelayMs + INQUIRY_MS + EPSILON_MS;
  for (const fault of startMs.keys()) {
    spreadMs += 'ms' in fault && Number.isFinite(fault.ms) ? fault.ms : 0;
    spreadMs += 'ms' in fault && !isHarmless(fault) ? MAX_SILENCE_MS : 0;
  }
  const problems: string[] = [];
  const expect = (fromMs: number, what: string) => {
    for (const rank of alive) {
      const ms = failedMs[rank] ?? Infinity;
      if (ms > fromMs + spreadMs) {
        const late = (ms - fromMs).toFixed(1);
        problems.push(`rank ${rank} knew ${late} ms after ${what}, limit ${spreadMs.toFixed(1)}`);
      }
    }
  };
  const [fault] = faults;
  if (faults.length === 1 && fault !== undefined) {
    const withinMs = noticedWithinMs(fault);
    // Who has left the job before the fault is missed by nobody, unless what it sent last is lost,
    // too; then the first rank that fails is the one to count from.
    const hasLeft = endpoints[fault.rank]!.failure?.kind === 'closed' && fault.kind === 'kill';
    if (withinMs !== undefined && endpoints.length > 1 && !hasLeft) {
      expect(startMs.get(fault)! + fault.delayMs + withinMs, describeFault(fault));
    }
  }
  const failed = alive.filter((rank) => isFailed(endpoints[rank]!));
  if (failed.length > 0) {
    expect(Math.min(...failed.map((rank) => failedMs[rank]!)), 'the first rank that failed');
  }
  return problems;
}

function isFailed(endpoint: Endpoint): boolean {
  return endpoint.failure !== undefined && endpoint.failure.kind !== 'closed';
}
