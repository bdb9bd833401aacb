// How a run ends, decided here alone: why, with which exit code and which save, whether the job may
// start again, and what people are told.

import { DivergedError, failureOf, RankFailedError, SignalError } from './errors.js';
import type { RunEndKind } from './output/run-records.js';
import type { RankEvent } from './rank/events.js';
import { type RunConfig, savesAtStop } from './run-config.js';

/**
 * Why a run ended: after its last step, early as it was told to, as somebody asked, or failed.
 * `misplaced`: all is done, but what was trained is not under --out.
 */
export type EndWhy =
  | 'done'
  | 'patience'
  | 'time'
  | 'misplaced'
  | 'asked'
  | 'diverged'
  | 'rank-failed'
  | 'failed';

/** The end of a run. */
export interface RunEnd {
  readonly why: EndWhy;
  readonly kind: RunEndKind;
  readonly exitCode: number;
  /** Whether the same command may start the job again, from its last save. */
  readonly mayRestart: boolean;
  /** The save that was written as the run was asked to end. */
  readonly save?: string | undefined;
  /** A sentence for the records; undefined where every step is done. */
  readonly reason?: string | undefined;
  /** What is printed as an error; undefined where the run did not fail, or another rank tells. */
  readonly failure?: string | undefined;
}

/** What is known of a run at its end. */
export interface RunFacts {
  readonly config: Pick<RunConfig, 'steps' | 'patience'>;
  /** The end before the last step that rank 0 has told. */
  readonly early: Extract<RankEvent, { readonly type: 'early' }> | undefined;
  /** Why what was trained is not under --out, and where it is; undefined where it is there. */
  readonly misplaced: string | undefined;
  /** What the job rejected with; undefined where it has done its work. */
  readonly error?: unknown;
  /** By what the run was asked to end. */
  readonly asked: SignalError | undefined;
}

/** How a run ended. */
export function runEnd({ config, early, misplaced, error, asked }: RunFacts): RunEnd {
  if (error === undefined && misplaced !== undefined) {
    const end = { why: 'misplaced', kind: 'failed', exitCode: 1, mayRestart: false } as const;
    return { ...end, reason: misplaced, failure: misplaced };
  }
  if (error === undefined && early?.why !== 'asked') {
    const reason = early && earlyText(early, config);
    return { why: early?.why ?? 'done', kind: 'done', exitCode: 0, mayRestart: false, reason };
  }
  if (asked !== undefined && (error === undefined || error instanceof SignalError)) {
    const { message: reason, exitCode } = asked;
    const save = early?.save;
    return { why: 'asked', kind: 'stopped', exitCode, mayRestart: false, save, reason };
  }
  const isRank = error instanceof RankFailedError;
  return {
    why: error instanceof DivergedError ? 'diverged' : isRank ? 'rank-failed' : 'failed',
    kind: 'failed',
    mayRestart: isRank && asked === undefined,
    reason: error instanceof Error ? error.message : String(error),
    ...failureOf(error),
  };
}

/** The sentence for a run that is done before its last step. */
export function earlyText(
  { step, why }: Extract<RankEvent, { readonly type: 'early' }>,
  { patience, steps }: RunFacts['config'],
): string {
  const reason =
    why === 'time'
      ? '--time-limit is over'
      : `${patience} evaluations in a row had no lower loss (--patience)`;
  return `Done after step ${step} of ${steps}: ${reason}.`;
}

/** Where a run is when it is asked to end. */
export interface RunPlace {
  readonly config: Pick<RunConfig, 'steps' | 'out' | 'saveEvery' | 'transport'>;
  /** The steps that are done; 0 also where a run that goes on has done none yet. */
  readonly step: number;
  /** Whether rank 0 has told that the run is done before its last step. */
  readonly isEarly: boolean;
}

/** What becomes of a run that is asked to end for the first time. */
export interface AskedEnd {
  /** Whether it may go on to the end of the present step, or of its results where all are done. */
  readonly isPatient: boolean;
  /** What the person who asked is told at once. */
  readonly says: string;
}

/** Decides what becomes of a run that is asked to end. */
export function askedEnd({ by }: SignalError, { config, step, isEarly }: RunPlace): AskedEnd {
  const again = by === 'Ctrl-C' ? 'Ctrl-C again' : 'Another signal';
  if (isEarly || step >= config.steps) {
    const says = `${by}: training is done and its results are on their way. ${again} ends at once, without them.`;
    return { isPatient: true, says };
  }
  if (savesAtStop(config) && step > 0) {
    const says = `${by}: ending the step on its way, then saving. ${again} ends at once, without that save.`;
    return { isPatient: true, says };
  }
  return { isPatient: false, says: `${by}: ending. ${again} ends at once.` };
}

/** The lines that a run leaves at its end, before its failure. */
export function lastLines(
  { why, save, mayRestart }: RunEnd,
  facts: Pick<RunFacts, 'asked'> & {
    readonly config: Pick<RunConfig, 'out'>;
    readonly step: number;
    /** The step of the newest save; undefined where there is none. */
    readonly savedStep: number | undefined;
    /** The command line that goes on. */
    readonly goOn: string;
  },
): readonly string[] {
  const { asked, config, step, savedStep, goOn } = facts;
  if (why === 'asked') {
    const head = `Stopped by ${asked!.by} after step ${step}`;
    if (save !== undefined) {
      return [`${head}, saved in ${save}.`, `Go on with: ${goOn}`];
    }
    const lost = config.out === undefined ? ' Nothing is saved without --out.' : '';
    const from = savedStep === undefined ? [] : [`Go on from step ${savedStep} with: ${goOn}`];
    return [`${head}.${lost}`, ...from];
  }
  if (savedStep === undefined) {
    return [];
  }
  if (why === 'diverged') {
    return [`Go on from its save of step ${savedStep} with a smaller rate: ${goOn}`];
  }
  return mayRestart ? [`Go on from its save of step ${savedStep} with: ${goOn}`] : [];
}
