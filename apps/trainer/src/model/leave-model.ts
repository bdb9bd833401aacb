// The end of a run: what has been trained is written under --out or, where that disk does not take
// it, in another place that is named.

import { randomBytes } from 'node:crypto';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { DiskFullError } from '../errors.js';
import { bytesOnDisk, freeBytes, whyNotWritten } from '../files/disk-room.js';
import { hasSaves, savesOf } from '../files/save-directory.js';
import { type FilePieces, removeUnfinished, writeDirectory } from '../files/write-file.js';
import { homeDirectory } from '../home-directory.js';
import type { EmitRankEvent } from '../rank/events.js';

/**
 * How long room is waited for. Other ranks wait meanwhile, and give up after ten minutes in which
 * nothing moves; the half that is left is for writing elsewhere.
 */
const WAIT_MS = 300_000;
const LOOK_MS = 250;

export interface LeaveModelOptions {
  readonly emit: EmitRankEvent;
  /** Ends the wait for room; the model is then written elsewhere at once. */
  readonly wrapUp: AbortSignal;
  /** Ends everything, with its reason. */
  readonly signal: AbortSignal;
  /** The longest wait for room. */
  readonly waitMs?: number;
  /**
   * Where the model goes that --out does not take, in this order. Default: the working directory,
   * the home, and the directory of temporary files, which on some systems is memory.
   */
  readonly elsewhere?: readonly string[] | undefined;
}

/**
 * Writes the files as the directory `path`, in place of an earlier one. Where that fails, it tells
 * what is missing, waits for room, and writes them elsewhere in the end, which an event tells.
 * @returns whether they are in `path`
 * @throws what the files throw while they are read, and the signal's reason
 */
export async function leaveModel(
  path: string,
  files: readonly FilePieces[],
  options: LeaveModelOptions,
): Promise<boolean> {
  const { emit } = options;
  await removeUnfinished(path).catch(() => undefined); // a write that fails says why
  const problem = await writeWaiting(path, files, options);
  if (problem === undefined) {
    return true;
  }
  const texts = [problem.text];
  const elsewhere = options.elsewhere ?? otherPlaces();
  for (const place of new Set(elsewhere.map((directory) => resolve(directory)))) {
    const other = join(place, otherName(path));
    const another = await tryToWrite(other, files);
    if (another === undefined) {
      const text = `${problem.text} It is whole in ${other} instead: move it to where it is to stay.`;
      emit({ type: 'misplaced', text });
      return false;
    }
    texts.push(another.text);
  }
  const outDir = dirname(path);
  const isSaved = hasSaves(savesOf(outDir));
  texts.push(
    isSaved
      ? `The newest save is still there: shardweave convert --from ${outDir} --out DIR.`
      : 'What was trained is lost.',
  );
  emit({ type: 'misplaced', text: texts.join(' ') });
  return false;
}

/** The places where a model may go, of which any but the last may be missing. */
function otherPlaces(): string[] {
  const places = [workingDirectory(), homeDirectory(), tmpdir()];
  return places.filter((place) => place !== undefined);
}

/** Undefined where it was removed. */
function workingDirectory(): string | undefined {
  try {
    return process.cwd();
  } catch {
    return undefined;
  }
}

/** A new name that says of which run the directory is, such as `first-model-1f83ab02`. */
function otherName(path: string): string {
  return `${basename(dirname(resolve(path)))}-${basename(path)}-${randomBytes(4).toString('hex')}`;
}

/** Why a directory is not written. */
interface Problem {
  /** A sentence with its path. */
  readonly text: string;
  /** What has to be free for another try; undefined where room is not what is missing. */
  readonly leastBytes: number | undefined;
}

async function writeWaiting(
  path: string,
  files: readonly FilePieces[],
  { emit, wrapUp, signal, waitMs = WAIT_MS }: LeaveModelOptions,
): Promise<Problem | undefined> {
  let problem = await tryToWrite(path, files);
  if (problem?.leastBytes !== undefined && !wrapUp.aborted) {
    const most = `${Math.ceil(waitMs / 60_000)} min`;
    const text = `${problem.text} Make room: the run waits for it, at most ${most} or until Ctrl-C, and then writes elsewhere.`;
    emit({ type: 'warning', text });
  }
  const given = AbortSignal.any([signal, wrapUp]);
  const endMs = performance.now() + waitMs;
  const leftMs = () => (given.aborted ? 0 : endMs - performance.now());
  while (problem?.leastBytes !== undefined && leftMs() > 0) {
    const lookMs = Math.min(LOOK_MS, leftMs());
    await delay(lookMs, undefined, { signal: given }).catch(() => undefined);
    problem = await tryToWrite(path, files, problem.leastBytes);
  }
  signal.throwIfAborted();
  return problem;
}

/** @param leastBytes what has to be free; default: what the files take */
async function tryToWrite(
  path: string,
  files: readonly FilePieces[],
  leastBytes = 0,
): Promise<Problem | undefined> {
  const lengths = files.map(({ byteLength }) => byteLength);
  let neededBytes = 0;
  try {
    neededBytes = bytesOnDisk(path, lengths);
    const free = freeBytes(path);
    const least = Math.max(neededBytes, leastBytes);
    if (free < least) {
      const { message } = new DiskFullError({ path, neededBytes, freeBytes: free });
      return { text: message, leastBytes: least };
    }
    await writeDirectory(path, files, { isReplacing: true });
    return undefined;
  } catch (error) {
    const text = whyNotWritten(error, path);
    if (!(error instanceof DiskFullError)) {
      return { text, leastBytes: undefined };
    }
    // A quota may be used up where the disk is not full: then as much again has to come free.
    const free = error.freeBytes;
    return { text, leastBytes: free < neededBytes ? neededBytes : free + neededBytes };
  }
}
