// The trainer's errors. The message is all that a person sees: a sentence that tells what to do.
// The class decides the exit code.

import { constants } from 'node:os';
import { formatBytes } from './format.js';
import { describeSystemError, fileLimitHint } from './system-error.js';

/** The base of the errors that end the command; `exitCode` is the exit code of the process. */
export class TrainerError extends Error {
  readonly code: string = 'TRAINER';
  readonly exitCode: number = 1;
  override readonly name: string = 'TrainerError';
}

/** The caller's mistake: a flag, a text or a model that can't be used as asked. */
export class UsageError extends TrainerError {
  override readonly code = 'USAGE';
  override readonly exitCode = 2;
  override readonly name = 'UsageError';
}

/**
 * The loss or the weights are not numbers, on all ranks alike. The same steps would end so again:
 * a run is never restarted after it.
 */
export class DivergedError extends TrainerError {
  override readonly code = 'DIVERGED';
  override readonly name = 'DivergedError';
}

/** What a disk was to take, and what it can. */
export interface DiskRoom {
  readonly path: string;
  /** Undefined where only the disk knew that it was too much. */
  readonly neededBytes: number | undefined;
  readonly freeBytes: number;
}

/**
 * A disk has no room for what is to be written there: not the caller's mistake, so that the same
 * line works once there is room.
 */
export class DiskFullError extends TrainerError implements DiskRoom {
  override readonly code = 'DISK_FULL';
  override readonly name = 'DiskFullError';
  readonly path: string;
  readonly neededBytes: number | undefined;
  readonly freeBytes: number;
  /** @param options.hint a sentence that ends the message */
  constructor(room: DiskRoom, options: ErrorOptions & { readonly hint?: string } = {}) {
    const { path, neededBytes, freeBytes } = room;
    const takes = neededBytes === undefined ? 'finds no room' : `takes ${formatBytes(neededBytes)}`;
    const word = options.cause === undefined ? '' : ` (${describeSystemError(options.cause)})`;
    const hint = options.hint === undefined ? '' : ` ${options.hint}`;
    super(`${path} ${takes}, where ${formatBytes(freeBytes)} are free${word}.${hint}`, options);
    this.path = path;
    this.neededBytes = neededBytes;
    this.freeBytes = freeBytes;
  }
}

/** A rank ended before its work was done. */
export class RankFailedError extends TrainerError {
  override readonly code = 'RANK_FAILED';
  override readonly name = 'RankFailedError';
  readonly rank: number;
  constructor(rank: number, message: string, options?: ErrorOptions) {
    super(message, options);
    this.rank = rank;
  }
}

/** Under mpirun, a rank's failure that rank 0 has been told about, and shows. */
export class ToldError extends TrainerError {
  override readonly code = 'TOLD';
  override readonly exitCode: number;
  override readonly name = 'ToldError';
  constructor(failure: { readonly message: string; readonly kind: string }) {
    super(failure.message);
    this.exitCode = failure.kind === 'usage' ? 2 : 1;
  }
}

/**
 * A wish that the command ends: a signal, or what counts as one. The exit code is the one that the
 * shell uses for the signal.
 */
export class SignalError extends TrainerError {
  override readonly code = 'SIGNAL';
  override readonly exitCode: number;
  override readonly name = 'SignalError';
  readonly signal: NodeJS.Signals;
  /** What asked, in words for people. */
  readonly by: string;
  constructor(signal: NodeJS.Signals, by: string = signal === 'SIGINT' ? 'Ctrl-C' : signal) {
    super(`Ended by ${by}.`);
    this.exitCode = 128 + constants.signals[signal];
    this.signal = signal;
    this.by = by;
  }

  /** The same wish, with a sentence that says what it has ended. */
  telling(message: string): SignalError {
    return Object.assign(new SignalError(this.signal, this.by), { message });
  }
}

/** How a command that failed ends. */
export interface Failure {
  readonly exitCode: number;
  /** A sentence, or a stack where this program is to blame; undefined where another rank tells. */
  readonly failure: string | undefined;
}

/** What an error means for the command: its exit code, and what is printed. */
export function failureOf(error: unknown): Failure {
  if (error instanceof ToldError) {
    return { exitCode: error.exitCode, failure: undefined };
  }
  if (error instanceof TrainerError) {
    return { exitCode: error.exitCode, failure: error.message };
  }
  const { path, syscall } = error as NodeJS.ErrnoException;
  if (path !== undefined && syscall !== undefined) {
    const what = `${path} can't be used (${describeSystemError(error)}).`;
    const hint =
      fileLimitHint(error) ?? 'Give another path, or the right to read and write this one.';
    return { exitCode: 1, failure: `${what} ${hint}` };
  }
  const failure = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return { exitCode: 1, failure };
}
