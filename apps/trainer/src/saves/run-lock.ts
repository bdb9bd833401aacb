// Keeps a run to one command at a time: a new run finds its --out unused, and a run that goes on or
// begins anew was told to do so.

import { existsSync } from 'node:fs';
import { rmdir } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { StoreLockedError } from '@shardweave/shard-store';
import { lockDirectory, nodeFiles } from '@shardweave/shard-store/node';
import { UsageError } from '../errors.js';
import { makeDirectory } from '../files/make-directory.js';
import { RUN_FILES } from '../files/run-files.js';
import { savesOf } from '../files/save-directory.js';
import { removeUnfinished } from '../files/write-file.js';
import type { RunConfig } from '../run-config.js';
import { describeSystemError, ownerHint } from '../system-error.js';
import { type RunDone, stateOf } from './run-state.js';

/**
 * Takes --out for this command until it is disposed; a process that is killed gives it up, too.
 * Nothing is left of an --out in which nothing was written.
 * @throws {UsageError} where --out holds a run that this one does not go on with, or files of
 * another program, or another command has it
 */
export async function lockRun(config: RunConfig): Promise<AsyncDisposable> {
  const { out } = config;
  if (out === undefined) {
    return { [Symbol.asyncDispose]: async () => {} };
  }
  const isNew = !existsSync(out);
  const { release } = await lock(out);
  const leave = async () => {
    await release();
    for (const path of [savesOf(out), ...(isNew ? [out] : [])]) {
      await rmdir(path).catch(() => undefined); // where it is not empty, or was not made
    }
  };
  try {
    refuseOthers(out, config);
    for (const name of Object.values(RUN_FILES)) {
      await removeUnfinished(join(out, name));
    }
  } catch (error) {
    await leave();
    throw error;
  }
  return { [Symbol.asyncDispose]: leave };
}

/**
 * The sentence for a run under --out that --resume auto finds at its end; undefined where there is
 * something to do.
 */
export function sayDone(config: RunConfig): string | undefined {
  const { out } = config;
  const state = out !== undefined && isAuto(config) ? stateOf(out) : undefined;
  if (state?.is !== 'done' || !isOver(state, config)) {
    return undefined;
  }
  const { step, steps, why } = state.end;
  const reason = { done: '', time: ', as --time-limit was over', patience: ', out of --patience' };
  const more = state.hasSaves
    ? 'Give more --steps to train on'
    : 'It has no saves to train on from: give another --out for more';
  return `The run in ${out} is done after step ${step} of ${steps}${reason[why]}: nothing is left to train. ${more}.`;
}

/** Whether a command with `config` has nothing to add to a run that is done. */
function isOver(
  { end, hasSaves }: { readonly end: RunDone; readonly hasSaves: boolean },
  { steps, patience = Infinity, timeLimit }: RunConfig,
): boolean {
  if (steps <= end.step) {
    return true;
  }
  // With saves each command has a --time-limit of its own.
  return end.why === 'time'
    ? !hasSaves && timeLimit !== undefined && steps <= end.steps
    : end.why === 'patience' && patience <= (end.patience ?? 0);
}

function refuseOthers(out: string, config: RunConfig): void {
  const state = stateOf(out);
  const refuse = (holds: string) => {
    throw new UsageError(`--out: ${out} already holds ${holds}`);
  };
  if (state.is === 'foreign') {
    refuse(`${state.name}, which no run has left there. Choose another directory.`);
  }
  if (state.is === 'begun' && config.resume === undefined) {
    refuse(
      'a run that ended before its first save. Begin it anew with --resume auto, or choose another directory.',
    );
  }
  if (state.is !== 'saved' && state.is !== 'done') {
    return;
  }
  const hasSaves = state.is === 'saved' || state.hasSaves;
  if (!isGoingOn(out, config)) {
    refuse(
      hasSaves
        ? 'a run with saves. Go on from the newest with --resume auto, or choose another directory.'
        : 'a run that is done. Choose another directory, or remove that one.',
    );
  }
  if (!hasSaves && sayDone(config) === undefined) {
    refuse(
      'a run that is done, and no save to go on from. Choose another directory, or remove that one.',
    );
  }
}

/** Whether the run under --out is the one that goes on. */
function isGoingOn(out: string, config: RunConfig): boolean {
  const isInside = (path: string) => !relative(out, path).startsWith('..');
  return isAuto(config) || (config.resume !== undefined && isInside(config.resume));
}

/** Whether the newest save under --out is what the run goes on from. */
function isAuto({ out, resume }: RunConfig): boolean {
  return resume === 'auto' || (resume !== undefined && resume === out);
}

async function lock(out: string) {
  try {
    makeDirectory(out);
    return await lockDirectory(nodeFiles, out);
  } catch (cause) {
    if (cause instanceof StoreLockedError) {
      throw new UsageError(
        `--out: another command is at work in ${out}, ${cause.owner}. Wait for it, or choose another directory.${ownerHint(cause)}`,
        { cause },
      );
    }
    throw new UsageError(
      `--out: ${out} can't be written (${describeSystemError(cause)}). Give a directory that can be made.`,
      { cause },
    );
  }
}
