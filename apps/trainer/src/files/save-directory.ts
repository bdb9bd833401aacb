// The saves of a run: RUN/saves/step-000120, one directory each. A save has another name until it
// is whole, and again before it is removed, so whatever is called `step-` and a number was whole
// when it got the name.

import { existsSync, readdirSync } from 'node:fs';
import { open, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { CheckpointError, openSave } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import type { SavedRun } from '../saves/saved-run.js';
import { makeDirectory } from './make-directory.js';

const SAVES = 'saves';
const STEP = /^step-(\d{6,})$/;
/** The suffix of a save that is being written, or removed. */
const PART = '.part';
/** The beginning of a file's name by which ranks find out that they share the directory. */
export const MARK = '.seen-by-all-';
/**
 * The suffix of a save that the run does not go on from: a damaged one, or one after the step that
 * was chosen.
 */
const ASIDE = '.aside';

/** A save as its index describes it; nothing of its pieces has been read. */
export interface FoundSave {
  readonly path: string;
  readonly step: number;
  readonly record: SavedRun;
}

/** A directory of a save without an index that can be read. */
export interface UnreadableSave {
  readonly path: string;
  readonly step: number;
  readonly problem: string;
}

export function savesOf(runDirectory: string): string {
  return join(runDirectory, SAVES);
}

/** Whether the save in `path` is one of the run in `runDirectory`. */
export function isSaveOf(runDirectory: string | undefined, path: string): boolean {
  return runDirectory !== undefined && dirname(path) === savesOf(runDirectory);
}

/**
 * The saves and former saves in `directory`, the newest first; empty where there is no such
 * directory.
 */
export async function findSaves(directory: string): Promise<(FoundSave | UnreadableSave)[]> {
  const steps = stepsIn(directory).reverse();
  return Promise.all(steps.map((step) => readSave(pathOf(directory, step), step)));
}

/** The save in `path`, by its index alone. */
export async function readSave(path: string, step = 0): Promise<FoundSave | UnreadableSave> {
  try {
    const { extra } = await openSave(pieceDirectory(path));
    const record = extra.run as SavedRun | undefined;
    return record === undefined
      ? { path, step, problem: 'It is no save of a run.' }
      : { path, step: record.step, record };
  } catch (error) {
    if (!isDamage(error)) {
      throw error;
    }
    return { path, step, problem: (error as Error).message };
  }
}

/**
 * Whether reading a save failed because of the save itself, and not because of what it was to be
 * loaded into.
 */
export function isDamage(error: unknown): boolean {
  const { code, syscall } = error as { readonly code?: string; readonly syscall?: string };
  return error instanceof CheckpointError
    ? ['MISSING', 'FORMAT', 'CORRUPT'].includes(code!)
    : syscall !== undefined;
}

/** The steps of the saves in `directory`, ascending. */
export function stepsIn(directory: string): number[] {
  const steps = namesIn(directory).flatMap((name) => STEP.exec(name)?.[1] ?? []);
  return steps.map(Number).sort((a, b) => a - b);
}

/** Whether `directory` has any save, whole or damaged. */
export function hasSaves(directory: string): boolean {
  return stepsIn(directory).length > 0;
}

export function pathOf(directory: string, step: number): string {
  return join(directory, `step-${String(step).padStart(6, '0')}`);
}

/** Makes the empty directory in which the save of a step is written. */
export async function beginPart(directory: string, step: number): Promise<string> {
  const part = `${pathOf(directory, step)}${PART}`;
  await rm(part, { recursive: true, force: true });
  makeDirectory(part);
  return part;
}

/** Gives a whole save its name; one that already has the name is set aside. */
export async function endPart(part: string): Promise<string> {
  const path = part.slice(0, -PART.length);
  if (existsSync(path)) {
    await setAside(path);
  }
  await rename(part, path);
  // This makes durable the name of the save, and those of directories that were made for the first
  // one.
  for (const directory of [dirname(path), dirname(dirname(path))]) {
    await syncDirectory(directory);
  }
  return path;
}

/** Takes a save out of those that are found, but keeps it. */
export async function setAside(path: string): Promise<string> {
  let aside = `${path}${ASIDE}`;
  for (let number = 2; existsSync(aside); number++) {
    aside = `${path}${ASIDE}-${number}`;
  }
  await rename(path, aside);
  return aside;
}

export async function removeSave(directory: string, step: number): Promise<void> {
  const path = pathOf(directory, step);
  await rename(path, `${path}${PART}`);
  await rm(`${path}${PART}`, { recursive: true, force: true });
}

/** Removes what a process that died had not finished writing or removing, marks of ranks, too. */
export async function removeParts(directory: string): Promise<void> {
  for (const name of namesIn(directory)) {
    const isPart = name.endsWith(PART) && STEP.test(name.slice(0, -PART.length));
    if (isPart || name.startsWith(MARK)) {
      await rm(join(directory, name), { recursive: true, force: true });
    }
  }
}

function namesIn(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : [];
}

async function syncDirectory(path: string): Promise<void> {
  if (process.platform === 'win32') {
    return; // has no handles of directories
  }
  const handle = await open(path);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
