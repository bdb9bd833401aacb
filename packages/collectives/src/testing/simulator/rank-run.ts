// One rank that takes the steps of a program: it starts calls, some at the same time, and checks
// their results. After a failure it checks that everything pending and later rejects with that
// failure. It notes every problem that it finds.

import type { Endpoint } from '../../endpoint/endpoint.js';
import { CollectiveError } from '../../errors.js';
import type { ProcessGroup } from '../../group/process-group.js';
import type { Fault } from './faults.js';
import type { Program, SplitStep, Step } from './random-program.js';
import type { ReferenceData } from './reference-data.js';
import type { SeededRandom } from './seeded-random.js';
import type { SimulatedProcess } from './simulated-process.js';
import { prepareCall } from './step-call.js';

/** The byte that a caller writes into buffers that are its own again. */
const OVERWRITTEN = 0xa5;

/**
 * The time after which a rank that sticks closes: long after all that waited for it have given up.
 */
const STUCK_MS = 3_600_000;

export interface RankRunOptions {
  readonly rank: number;
  readonly endpoint: Endpoint;
  readonly group: ProcessGroup;
  readonly process: SimulatedProcess;
  readonly program: Program;
  readonly data: ReferenceData;
  readonly random: SeededRandom;
  /** The faults that this rank's own program commits. */
  readonly faults: readonly Fault[];
  /** Called when the rank comes to a step. */
  onStep(rank: number, step: number): void;
  onProblem(problem: string): void;
  trace(text: string): void;
}

interface RunningCall {
  readonly description: string;
  readonly settled: Promise<void>;
}

export class RankRun {
  readonly #options: RankRunOptions;
  /** The groups by the number of the split that made them, the world first. */
  readonly #groups: ProcessGroup[];
  /** The world ranks of the rank's own part of each, as the program gives them. */
  readonly #members: number[][];
  readonly #running = new Set<RunningCall>();
  readonly #overwritten: { readonly buffer: Uint8Array; readonly description: string }[] = [];
  /** The first error, which all others must equal. */
  error: CollectiveError | undefined;
  isDone = false;
  numResolved = 0;
  numRejected = 0;

  constructor(options: RankRunOptions) {
    this.#options = options;
    this.#groups = [options.group];
    this.#members = [Array.from({ length: options.program.worldSize }, (_, r) => r)];
  }

  /** The descriptions of the calls that are still pending. */
  get pending(): string[] {
    return [...this.#running].map(({ description }) => description);
  }

  async run(): Promise<void> {
    try {
      await this.#takeSteps();
      await this.#settleAll();
      if (this.error !== undefined) {
        await this.#expectLaterCallsToReject();
      }
      await this.#options.group.close();
    } catch (error) {
      this.#complain(`its program threw ${error}`);
    }
    this.isDone = true;
  }

  /**
   * Checks, when nothing can happen any more, that nothing was written to buffers that were given
   * back.
   */
  checkBuffers(): void {
    for (const { buffer, description } of this.#overwritten) {
      for (let at = 0; at < buffer.length; at++) {
        if (buffer[at] !== OVERWRITTEN) {
          this.#complain(
            `byte ${at} of a buffer of ${description} was written after it had settled`,
          );
          break;
        }
      }
    }
  }

  async #takeSteps(): Promise<void> {
    const { program, random, rank } = this.#options;
    const depth = random.pick([1, 1, 2, 3, 100]);
    const thinkMs = random.pick([0, 0, 1, 20]);
    for (let i = 0; i < program.steps.length; i++) {
      if (random.chance(0.4)) {
        await this.#options.process.sleep(random.exponential(thinkMs));
      }
      this.#options.onStep(rank, i);
      const isOver = await this.#misbehave(i);
      if (isOver || this.error !== undefined) {
        return;
      }
      await this.#take(this.#ownStep(i), i);
      while (this.#running.size >= depth) {
        await [...this.#running][0]!.settled;
      }
    }
  }

  /** The step as this rank takes it: another one where it is to disagree. */
  #ownStep(i: number): Step {
    const step = this.#options.program.steps[i]!;
    const mismatch = this.#faultAt('mismatch', i);
    return mismatch === undefined ? step : otherStep(step, this.#options.random);
  }

  /** Commits the faults of this step. Resolves with whether the rank's program ends here. */
  async #misbehave(i: number): Promise<boolean> {
    const { group, endpoint, trace, rank } = this.#options;
    if (this.#faultAt('abort', i) !== undefined) {
      trace(`rank ${rank} aborts`);
      group.abort('it was asked to');
    }
    if (this.#faultAt('leave', i) !== undefined) {
      await group.close();
      return true;
    }
    if (this.#faultAt('stick', i) !== undefined) {
      trace(`rank ${rank} sticks`);
      // Where no rank needs this one, none fails.
      await Promise.race([endpoint.failed, this.#options.process.sleep(STUCK_MS)]);
      if (endpoint.failure !== undefined) {
        this.error ??= await this.#later(group);
      }
      return true;
    }
    return false;
  }

  #faultAt(kind: Fault['kind'], i: number): Fault | undefined {
    return this.#options.faults.find((fault) => fault.kind === kind && fault.step === i);
  }

  async #take(step: Step, i: number): Promise<void> {
    const { rank, data } = this.#options;
    if (step.kind === 'split') {
      await this.#split(step, i);
      return;
    }
    if (step.kind === 'message' && step.from !== rank && step.to !== rank) {
      return;
    }
    const group = this.#groups[step.kind === 'message' ? 0 : step.group]!;
    const members = this.#members[step.kind === 'message' ? 0 : step.group]!;
    const { hosts } = this.#options.program;
    const call = prepareCall(step, group, data, hosts && members.map((member) => hosts[member]!));
    const description = `step ${i} (${describeStep(step)})`;
    this.#start(description, call.run(), (isResolved) => {
      if (isResolved) {
        call.check();
      }
      for (const buffer of call.buffers) {
        buffer.fill(OVERWRITTEN);
        this.#overwritten.push({ buffer, description });
      }
    });
  }

  async #split(step: SplitStep, i: number): Promise<void> {
    const { rank } = this.#options;
    const color = step.colors[rank]!;
    const parent = this.#members[step.group]!;
    const members = parent
      .filter((member) => step.colors[member] === color)
      .sort((a, b) => step.keys[a]! - step.keys[b]! || parent.indexOf(a) - parent.indexOf(b));
    this.#members.push(members);
    const made = this.#groups[step.group]!.split(color, step.keys[rank]!);
    let group: ProcessGroup | undefined;
    const keep = made.then((value) => {
      group = value;
    });
    await this.#start(`step ${i} (split)`, keep, () => {}).settled;
    if (group === undefined) {
      return;
    }
    if (group.worldSize !== members.length || group.rank !== members.indexOf(rank)) {
      this.#complain(`split gave rank ${group.rank}/${group.worldSize}, not ${members}`);
    }
    this.#groups.push(group);
  }

  #start(
    description: string,
    call: Promise<unknown>,
    onSettled: (isResolved: boolean) => void,
  ): RunningCall {
    const { trace, rank, endpoint } = this.#options;
    trace(`rank ${rank} calls ${description}`);
    const hadFailed = endpoint.failure !== undefined;
    const settle = (isResolved: boolean, text: string) => {
      trace(`rank ${rank}: ${description} ${text}`);
      this.#running.delete(running);
      try {
        onSettled(isResolved);
      } catch (error) {
        this.#complain(`${description}: ${(error as Error).message}`);
      }
    };
    const settled = call.then(
      () => {
        this.numResolved++;
        settle(true, 'resolves');
        if (hadFailed) {
          this.#complain(`${description} resolved though the job had failed before`);
        }
      },
      (error: unknown) => {
        this.numRejected++;
        settle(false, `rejects: ${error}`);
        this.#noteError(description, error);
      },
    );
    const running: RunningCall = { description, settled };
    this.#running.add(running);
    return running;
  }

  async #settleAll(): Promise<void> {
    for (const { settled } of [...this.#running]) {
      await settled;
    }
  }

  /** The error of a call that is made when all is over; it must come at once. */
  async #later(group: ProcessGroup): Promise<CollectiveError | undefined> {
    const { process } = this.#options;
    const startMs = process.now();
    try {
      await group.barrier();
      this.#complain('a barrier resolved after the failure');
    } catch (error) {
      if (process.now() > startMs) {
        this.#complain(`a later call took ${process.now() - startMs} ms to reject`);
      }
      if (error instanceof CollectiveError) {
        return error;
      }
      this.#complain(`a later call threw ${error}`);
    }
    return undefined;
  }

  async #expectLaterCallsToReject(): Promise<void> {
    for (const group of this.#groups) {
      const error = await this.#later(group);
      if (error !== undefined) {
        this.#noteError('a later call', error);
      }
    }
  }

  #noteError(description: string, error: unknown): void {
    if (!(error instanceof CollectiveError)) {
      this.#complain(`${description} rejected with ${error}`);
      return;
    }
    this.error ??= error;
    const { code, originRank } = this.error;
    if (error.code !== code || error.originRank !== originRank) {
      this.#complain(
        `${description} says "${error.message}", earlier it was "${this.error.message}"`,
      );
    }
  }

  #complain(problem: string): void {
    this.#options.onProblem(`rank ${this.#options.rank}: ${problem}`);
  }
}

/** A step that disagrees with `step`, over the same ranks. A split stays as it is. */
function otherStep(step: Step, random: SeededRandom): Step {
  if (step.kind === 'split') {
    return step;
  }
  if (step.kind === 'message') {
    return { ...step, count: step.count + 1 };
  }
  const operation = random.pick(['allReduce', 'allGather', 'gather', 'broadcast'] as const);
  const dtype = random.pick(['f32', 'bf16', 'i32'] as const);
  const usual = { op: 'sum', count: 63, hasUnevenCounts: false, root: 0 } as const;
  const other = { ...usual, isInPlace: false, variant: 0, group: step.group, operation, dtype };
  if (step.kind === 'barrier') {
    return { kind: 'collective', ...other };
  }
  return random.pick<Step>([
    { ...step, operation: step.operation === operation ? 'reduceScatter' : operation, dtype },
    { ...step, dtype: step.dtype === dtype ? 'u32' : dtype },
    { ...step, count: step.count + 1 },
    { kind: 'barrier', group: step.group },
  ]);
}

function describeStep(step: Exclude<Step, SplitStep>): string {
  switch (step.kind) {
    case 'barrier':
      return `barrier of group ${step.group}`;
    case 'message':
      return `message ${step.from} -> ${step.to} on ${step.channel}, ${step.count} bytes`;
    case 'collective': {
      const { operation, group, dtype, op, count } = step;
      const flags = `${step.isInPlace ? ', in place' : ''}${step.hasUnevenCounts ? ', uneven' : ''}`;
      return `${operation} of group ${group}, ${count} ${dtype} ${op}, root ${step.root}${flags}`;
    }
  }
}
