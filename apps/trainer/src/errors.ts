// The trainer's errors. The message is all that a person sees: a sentence that tells what to do.
// The class decides the exit code.

import { constants } from 'node:os';
import { formatBytes } from './output/format.js';
import { describeSystemError } from './system-error.js';

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

/** A signal that asks the command to end; the exit code is the one that the shell uses for it. */
export class SignalError extends TrainerError {
  override readonly code: string = 'SIGNAL';
  override readonly exitCode: number;
  override readonly name: string = 'SignalError';
  /** The name of the signal for people. */
  readonly by: string;
  constructor(signal: NodeJS.Signals, by: string = signal) {
    super(`The run was ended by ${by}.`);
    this.exitCode = 128 + constants.signals[signal];
    this.by = by;
  }
}

/** The command was ended by Ctrl-C. */
export class InterruptedError extends SignalError {
  override readonly code = 'INTERRUPTED';
  override readonly name = 'InterruptedError';
  constructor() {
    super('SIGINT', 'Ctrl-C');
  }
}
