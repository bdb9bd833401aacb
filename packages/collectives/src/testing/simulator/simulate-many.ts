// Runs many simulations, several at a time so that a turn of the event loop serves all of them, and
// sums up their figures.

import type { FaultKind } from './faults.js';
import {
  createSimulationResources,
  type SimulateOptions,
  SimulationError,
  type SimulationReport,
  simulate,
} from './simulate.js';

/** The options of `simulateMany`: a range of seeds, and what all its runs have in common. */
export interface SimulateManyOptions extends Omit<SimulateOptions, 'seed' | 'resources'> {
  readonly firstSeed: number;
  readonly numSeeds: number;
}

/**
 * The sums over the runs of `simulateMany` that passed, and the errors of those that did not, by
 * seed. It stops after 20 failed runs or a few more, so not all seeds may have been run.
 */
export interface SimulationFigures {
  readonly numRuns: number;
  readonly numEvents: number;
  readonly numResolved: number;
  readonly numRejected: number;
  /** The sum of all runs' durations, in the simulated world. */
  readonly virtualMs: number;
  readonly faults: Readonly<Partial<Record<FaultKind, number>>>;
  readonly failures: readonly SimulationError[];
}

/** More runs at a time don't make it faster. */
const CONCURRENCY = 32;

/** The number of failed runs after which it gives up; one is enough to look at. */
const MAX_FAILURES = 20;

/**
 * Runs seeds `firstSeed` to `firstSeed + numSeeds - 1`. Failures are in the figures, not thrown.
 */
export async function simulateMany(options: SimulateManyOptions): Promise<SimulationFigures> {
  const resources = await createSimulationResources();
  const faults: Partial<Record<FaultKind, number>> = {};
  const total = { numRuns: 0, numEvents: 0, numResolved: 0, numRejected: 0, virtualMs: 0 };
  const failures: SimulationError[] = [];
  const lastSeed = options.firstSeed + options.numSeeds - 1;
  let nextSeed = options.firstSeed;
  const add = (report: SimulationReport) => {
    total.numRuns++;
    total.numEvents += report.numEvents;
    total.numResolved += report.numResolved;
    total.numRejected += report.numRejected;
    total.virtualMs += report.virtualMs;
    for (const { kind } of report.faults) {
      faults[kind] = (faults[kind] ?? 0) + 1;
    }
  };
  const work = async () => {
    while (nextSeed <= lastSeed && failures.length < MAX_FAILURES) {
      const seed = nextSeed++;
      try {
        add(await simulate({ ...options, seed, resources }));
      } catch (error) {
        if (!(error instanceof SimulationError)) {
          throw error;
        }
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, work));
  failures.sort((a, b) => a.seed - b.seed);
  return { ...total, faults, failures };
}
