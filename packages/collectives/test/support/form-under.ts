// Forms a job while it is attacked, or lets one step that has formed, and tells what that cost
// rank 0, beside a job that was left alone.

import { expect } from 'vitest';
import { AttackedJob, type AttackedJobOptions } from './attacked-job.js';
import { type Attack, begin } from './attacks.js';

const MIB = 2 ** 20;
const NUM_STEPS = 200;

/**
 * The dearest attack, 5,000 connections, adds 200 to 440 ms beside 30 busy processes, every other
 * one at most 260; a listener that reads without a bound takes seconds.
 */
const MAX_CPU_MS = 1000;

/** The figures of a job that was left alone, by its options. */
const calm = new Map<string, Promise<Figures>>();

interface Figures {
  readonly formMs: number;
  readonly cpuMs: number;
  readonly residentMiB: number;
  readonly longestTurnMs: number;
  readonly numRefused: number;
  readonly numUnopened: number;
}

/** What a job cost rank 0 that was left alone. */
interface Calm {
  readonly calmMiB: number;
  readonly calmCpuMs: number;
}

/** Expects that a job's rank 0 had no more to bear than strangers may cost. */
export function expectBearable({
  residentMiB,
  calmMiB,
  cpuMs,
  calmCpuMs,
}: Calm & Pick<Figures, 'residentMiB' | 'cpuMs'>): void {
  expect(residentMiB - calmMiB).toBeLessThan(60);
  expect(cpuMs - calmCpuMs).toBeLessThan(MAX_CPU_MS);
}

export async function formUnder(
  name: string,
  attack: Attack,
  program: string,
  options: AttackedJobOptions = {},
): Promise<Figures & Calm> {
  const kind = JSON.stringify(options);
  const alone = calm.get(kind) ?? form(() => {}, program, options);
  calm.set(kind, alone);
  const { residentMiB: calmMiB, formMs: calmMs, cpuMs: calmCpuMs } = await alone;
  const figures = await form(attack, program, options);
  process.stdout.write(
    `${name}: formed in ${figures.formMs.toFixed(0)} ms (${calmMs.toFixed(0)}), longest turn ` +
      `${figures.longestTurnMs.toFixed(0)} ms, ${figures.numRefused} refused, rank 0 at ` +
      `${figures.cpuMs.toFixed(0)} ms of processor time (${calmCpuMs.toFixed(0)}) and ` +
      `${figures.residentMiB.toFixed(0)} MiB (${calmMiB.toFixed(0)})\n`,
  );
  return { ...figures, calmMiB, calmCpuMs };
}

async function form(
  attack: Attack,
  program: string,
  options: AttackedJobOptions,
): Promise<Figures> {
  await using job = await AttackedJob.begin(program, options);
  const end = begin(attack, job.port);
  const { formMs, costs } = await job.form();
  end();
  await job.end();
  return { ...costs, formMs, residentMiB: costs.maxResidentBytes / MIB };
}

/** The figures of a job that stepped and was left alone. */
let calmSteps: Promise<StepFigures> | undefined;

interface StepFigures {
  readonly stepsMs: number;
  readonly cpuMs: number;
  readonly residentMiB: number;
  readonly longestTurnMs: number;
  readonly numRefused: number;
  readonly numUnopened: number;
}

/** Attacks the port at which the ranks of a job met, while they do some hundred steps. */
export async function stepUnder(
  name: string,
  attack: Attack,
  program: string,
): Promise<StepFigures & Calm> {
  calmSteps ??= step(() => {}, program);
  const { residentMiB: calmMiB, stepsMs: calmMs, cpuMs: calmCpuMs } = await calmSteps;
  const figures = await step(attack, program);
  process.stdout.write(
    `${name}: ${NUM_STEPS} steps in ${figures.stepsMs.toFixed(0)} ms (${calmMs.toFixed(0)}), longest ` +
      `turn ${figures.longestTurnMs.toFixed(0)} ms, rank 0 at ` +
      `${figures.cpuMs.toFixed(0)} ms of processor time (${calmCpuMs.toFixed(0)}) and ` +
      `${figures.residentMiB.toFixed(0)} MiB (${calmMiB.toFixed(0)})\n`,
  );
  return { ...figures, calmMiB, calmCpuMs };
}

async function step(attack: Attack, program: string): Promise<StepFigures> {
  await using job = await AttackedJob.begin(program);
  await job.form();
  const { numSteps: before, numRefused } = await job.costs();
  const end = begin(attack, job.port);
  const start = performance.now();
  let costs = await job.costs();
  while (costs.numSteps < before + NUM_STEPS) {
    costs = worst(costs, await job.costs());
  }
  const stepsMs = performance.now() - start;
  end();
  await job.end();
  const { longestTurnMs, numUnopened, maxResidentBytes, cpuMs } = costs;
  return {
    stepsMs,
    cpuMs,
    longestTurnMs,
    numUnopened,
    numRefused: costs.numRefused - numRefused,
    residentMiB: maxResidentBytes / MIB,
  };
}

type StepCosts = Awaited<ReturnType<AttackedJob['costs']>>;

function worst(earlier: StepCosts, later: StepCosts): StepCosts {
  return {
    ...later,
    cpuMs: earlier.cpuMs + later.cpuMs,
    longestTurnMs: Math.max(earlier.longestTurnMs, later.longestTurnMs),
    maxResidentBytes: Math.max(earlier.maxResidentBytes, later.maxResidentBytes),
  };
}
