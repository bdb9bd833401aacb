// Keeps a run to one command at a time: a new run finds its --out unused, a run that goes on was
// told to do so, and the saves of a run have one owner.

import { existsSync } from 'node:fs';
import { join, relative } from 'node:path';
import { StoreLockedError } from '@shardweave/shard-store';
import { lockDirectory, nodeFiles } from '@shardweave/shard-store/node';
import { UsageError } from '../errors.js';
import { makeDirectory } from '../output/make-directory.js';
import { RUN_FILES, refuseUsedDirectory } from '../output/run-directory.js';
import type { RunConfig } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { savesOf, stepsIn } from './save-directory.js';

/**
 * Takes --out for this command until it is disposed; a process that is killed gives it up, too.
 * @throws {UsageError} where --out holds a run that this one does not go on with, or another
 * command has it
 */
export async function holdRun(config: RunConfig): Promise<AsyncDisposable> {
  const { outDir, saveEvery, resume } = config;
  if (outDir === undefined) {
    return { [Symbol.asyncDispose]: async () => {} };
  }
  const saves = savesOf(outDir);
  const steps = await stepsIn(saves);
  // A run that is at work but has no saves yet is reported as being at work, and not as one to be
  // removed.
  let held = existsSync(saves) && steps.length === 0 ? await lock(outDir, saves) : undefined;
  try {
    refuseOthers(config, { outDir, steps });
  } catch (error) {
    await held?.release();
    throw error;
  }
  if (saveEvery === undefined && resume === undefined) {
    await held?.release();
    return { [Symbol.asyncDispose]: async () => {} };
  }
  held ??= await lock(outDir, saves);
  return { [Symbol.asyncDispose]: held.release };
}

function refuseOthers(
  config: RunConfig,
  { outDir, steps }: { readonly outDir: string; readonly steps: readonly number[] },
): void {
  if (!isGoingOn(config)) {
    refuseSaves(outDir, steps);
    refuseUsedDirectory(outDir);
  } else if (steps.length === 0) {
    refuseResults(outDir);
  }
}

/** Whether the run under --out is the one that goes on. */
export function isGoingOn({ outDir, resume }: Pick<RunConfig, 'outDir' | 'resume'>): boolean {
  const isInside = (path: string) => !relative(outDir!, path).startsWith('..');
  return resume !== undefined && (resume === 'auto' || isInside(resume));
}

function refuseSaves(outDir: string, steps: readonly number[]): void {
  if (steps.length > 0) {
    throw new UsageError(
      `--out: ${outDir} already holds a run with saves. Go on from the newest with --resume auto, or choose another directory.`,
    );
  }
}

/** Refuses a fresh start in place of a run that has ended, because it would delete the results. */
function refuseResults(outDir: string): void {
  const { metrics: _, ...results } = RUN_FILES;
  const found = Object.values(results).find((name) => existsSync(join(outDir, name)));
  if (found !== undefined) {
    throw new UsageError(
      `--resume: ${outDir} holds a run that ended without saves (${found}). Choose another directory, or remove that one.`,
    );
  }
}

async function lock(outDir: string, saves: string) {
  try {
    makeDirectory(saves);
    return await lockDirectory(nodeFiles, saves);
  } catch (cause) {
    if (cause instanceof StoreLockedError) {
      throw new UsageError(
        `--out: another command is at work in ${outDir}. Wait for it, or choose another directory. ${cause.message}`,
        { cause },
      );
    }
    throw new UsageError(
      `--out: ${saves} can't be written (${describeSystemError(cause)}). Give a directory that can be made.`,
      { cause },
    );
  }
}
