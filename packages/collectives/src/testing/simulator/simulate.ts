// Runs a random program of collectives over a simulated network, with or without faults, and checks
// the outcome. Everything is drawn from one seed, so a run that fails fails again.

import { RankSum } from '@shardweave/dtypes';
import { Endpoint } from '../../endpoint/endpoint.js';
import type { PartReducer, ReduceHook } from '../../endpoint/reduce-hook.js';
import { createWorldGroup } from '../../group/group-options.js';
import { describeFault, type Fault, randomFault } from './faults.js';
import { judge } from './judge.js';
import { type Program, randomProgram } from './random-program.js';
import { RankRun } from './rank-run.js';
import { ReferenceData } from './reference-data.js';
import { SeededRandom } from './seeded-random.js';
import { SimulatedNetwork } from './simulated-network.js';
import type { SimulatedProcess } from './simulated-process.js';
import { VirtualTime } from './virtual-time.js';

/** The options of `simulate`. What is left out is drawn from the seed. */
export interface SimulateOptions {
  /** An integer that repeats the run. */
  readonly seed: number;
  /** The number of ranks. Default: 1 to 5, drawn. */
  readonly worldSize?: number;
  /** The program. Default: up to 16 random steps. */
  readonly program?: Program;
  /** The faults. Default: 'random', which draws one or two in three of four runs. */
  readonly faults?: 'random' | 'none' | readonly Fault[];
  /** Resources that runs share to save time. */
  readonly resources?: SimulationResources;
}

/** What runs may share: wasm and reference results. */
export interface SimulationResources {
  /** Combines parts; the checks find one that is wrong. */
  readonly reducer: PartReducer;
  /** @internal */
  readonly data: ReferenceData;
}

/** What happened in a run without problems. */
export interface SimulationReport {
  readonly seed: number;
  readonly worldSize: number;
  readonly numSteps: number;
  /** The faults that took place. */
  readonly faults: readonly Fault[];
  readonly numEvents: number;
  /** The duration in the simulated world. */
  readonly virtualMs: number;
  /** The numbers of all ranks' calls. */
  readonly numResolved: number;
  readonly numRejected: number;
}

/** Something was wrong in a run: `message` has the problems, the seed and the last events. */
export class SimulationError extends Error {
  readonly seed: number;
  readonly problems: readonly string[];
  /** The last events, each with its time in virtual milliseconds. */
  readonly trace: readonly string[];

  constructor(
    seed: number,
    problems: readonly string[],
    faults: readonly Fault[],
    trace: string[],
  ) {
    const what = faults.length === 0 ? 'no fault' : faults.map(describeFault).join('; ');
    super(
      [`simulation with seed ${seed} (${what}):`, ...problems, 'Last events:', ...trace].join(
        '\n  ',
      ),
    );
    this.name = 'SimulationError';
    this.seed = seed;
    this.problems = problems;
    this.trace = trace;
  }
}

/** Far more events than any program of this size takes. */
const MAX_EVENTS = 100_000;

/** Ten minutes, as in real jobs. */
const TIMEOUT_MS = 600_000;

const MAX_TRACED = 60;
const MAX_PROBLEMS = 5;

/**
 * Makes the reducer and the reference data that simulations compare with. Runs that share them save
 * the time of making and computing them again.
 */
export async function createSimulationResources(): Promise<SimulationResources> {
  return { reducer: await RankSum.create(), data: new ReferenceData() };
}

/**
 * Runs one simulation. Rejects with SimulationError where a result is wrong, a call hangs or
 * resolves when it must not, an error names the wrong cause, or a buffer is written after its call
 * has settled. It takes a few milliseconds; several may run at a time.
 */
export async function simulate(options: SimulateOptions): Promise<SimulationReport> {
  const resources = options.resources ?? (await createSimulationResources());
  const run = await runOnce(options, resources, undefined);
  if (run.problems.length === 0) {
    return run.report;
  }
  // The run is repeated, and its events are written down.
  const trace: string[] = [];
  const again = await runOnce(options, resources, trace);
  const problems = [...again.problems.slice(0, MAX_PROBLEMS)];
  if (again.problems.join() !== run.problems.join()) {
    problems.push(`not the same twice; first it was: ${run.problems[0]}`);
  }
  throw new SimulationError(options.seed, problems, run.report.faults, trace.slice(-MAX_TRACED));
}

async function runOnce(
  options: SimulateOptions,
  { reducer, data }: SimulationResources,
  trace: string[] | undefined,
): Promise<{ report: SimulationReport; problems: string[] }> {
  const random = new SeededRandom(options.seed);
  const worldSize = options.program?.worldSize ?? options.worldSize ?? 1 + random.below(5);
  const program = options.program ?? randomProgram(random.fork(), worldSize);
  const faults = drawFaults(options.faults ?? 'random', random.fork(), program);
  const time = new VirtualTime();
  const problems: string[] = [];
  const write = (text: string) => trace?.push(`${time.nowMs.toFixed(3)} ${text}`);
  const network = new SimulatedNetwork({
    worldSize,
    time,
    random: random.fork(),
    trace: trace && write,
  });
  const startMs = new Map<Fault, number>();
  const endpoints = network.processes.map((process, rank) => {
    const reduce = slowReduce(reducer, process, random.fork());
    const options = random.chance(0.5) ? { clock: process } : { clock: process, reduce };
    const services = { reducer: async () => reducer };
    const endpoint = new Endpoint(rank, worldSize, options, services);
    endpoint.attach(network.attach(rank, endpoint));
    return endpoint;
  });
  const failedMs: (number | undefined)[] = [];
  const runs = endpoints.map((endpoint, rank) => {
    const process = network.processes[rank]!;
    void endpoint.failed.then(() => {
      failedMs[rank] = process.now();
    });
    return new RankRun({
      rank,
      endpoint,
      group: createWorldGroup(endpoint, {
        timeoutMs: TIMEOUT_MS,
        clock: process,
        ...(program.hosts === undefined ? {} : { hosts: program.hosts }),
      }),
      process,
      program,
      data,
      random: random.fork(),
      faults: faults.filter((fault) => fault.rank === rank),
      onStep: (rank, step) => {
        for (const fault of faults.filter(
          (planned) => planned.rank === rank && planned.step === step,
        )) {
          startMs.set(fault, time.nowMs);
          inject(fault, network, time);
        }
      },
      onProblem: (problem) => problems.push(problem),
      trace: write,
    });
  });
  for (const [rank, run] of runs.entries()) {
    time.after(0, () => network.processes[rank]!.do(() => void run.run()));
  }
  try {
    await time.run(MAX_EVENTS);
  } catch (error) {
    problems.push((error as Error).message);
  }
  problems.push(...judge({ runs, endpoints, failedMs, startMs, network }));
  const sum = (count: (run: RankRun) => number) => runs.reduce((all, run) => all + count(run), 0);
  const report = {
    seed: options.seed,
    worldSize,
    numSteps: program.steps.length,
    faults: [...startMs.keys()],
    numEvents: time.numEvents,
    virtualMs: time.nowMs,
    numResolved: sum((run) => run.numResolved),
    numRejected: sum((run) => run.numRejected),
  };
  return { report, problems };
}

function drawFaults(
  faults: 'random' | 'none' | readonly Fault[],
  random: SeededRandom,
  { worldSize, steps }: Program,
): readonly Fault[] {
  if (faults === 'none' || steps.length === 0) {
    return [];
  }
  if (faults !== 'random') {
    return faults;
  }
  const numFaults = random.pick([0, 1, 1, 2]);
  return Array.from({ length: numFaults }, () => randomFault(random, worldSize, steps.length));
}

/** Commits a fault from outside a rank; RankRun commits those of a rank's own program. */
function inject(fault: Fault, network: SimulatedNetwork, time: VirtualTime): void {
  const { rank } = fault;
  time.after(fault.delayMs, () => {
    switch (fault.kind) {
      case 'kill':
        network.kill(rank);
        break;
      case 'stop':
        network.stop(rank, fault.ms);
        break;
      case 'busy':
        network.occupy(rank, fault.ms);
        break;
      case 'cut':
        network.cut(rank, fault.peer, fault.ms);
        break;
      case 'reset':
        network.reset(rank, fault.peer);
        break;
      case 'partition':
        for (const inside of fault.side) {
          for (const outside of network.peers(inside).filter((r) => !fault.side.includes(r))) {
            network.cut(inside, outside, fault.ms);
          }
        }
        break;
    }
  });
}

/** Combines parts as the package's own hook does, but takes its time as a worker or a GPU would. */
function slowReduce(
  reducer: PartReducer,
  process: SimulatedProcess,
  random: SeededRandom,
): ReduceHook {
  const meanMs = random.pick([0, 1, 30]);
  return async (parts, output, { signal, ...options }) => {
    await process.sleep(random.exponential(meanMs));
    if (!signal.aborted) {
      await reducer.reduce(parts, output, options);
    }
  };
}
