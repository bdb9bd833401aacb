// What a directory holds of a run, told from its files: the one answer for all that ask whether a
// run is there, and how far it came.

import { closeSync, existsSync, openSync, readFileSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { RUN_FILES } from '../files/run-files.js';
import { savesOf, stepsIn } from '../files/save-directory.js';
import type { RanksTold } from '../output/run-directory.js';

/** How a run that is done ended. */
export type RunDone = NonNullable<RanksTold['end']>;

/** What a directory holds of a run. */
export type RunState =
  /** Nothing that a run would write over. */
  | { readonly is: 'none' }
  /** A file of the name `name` that no run has left, as far as can be told. */
  | { readonly is: 'foreign'; readonly name: string }
  /** What a run leaves that ended, however it did, before its first save and its results. */
  | { readonly is: 'begun' }
  /** A run that has saves, the newest of step `step`, and has not come to its end since. */
  | { readonly is: 'saved'; readonly step: number }
  /** A run that came to its end, and whose results are whole. */
  | { readonly is: 'done'; readonly end: RunDone; readonly hasSaves: boolean };

/** The beginning of events.jsonl, which a run writes before any other file has bytes. */
const FIRST_EVENT = '{"type":"run"';

/** The state of the run in `directory`, which need not exist. */
export function stateOf(directory: string): RunState {
  const step = stepsIn(savesOf(directory)).at(-1);
  const names = Object.values(RUN_FILES).filter((name) => existsSync(join(directory, name)));
  const hasModel = names.includes(RUN_FILES.model) || names.includes(RUN_FILES.adapter);
  const end = hasModel ? endIn(join(directory, RUN_FILES.summary)) : undefined;
  if (end !== undefined) {
    return { is: 'done', end, hasSaves: step !== undefined };
  }
  if (step !== undefined) {
    return { is: 'saved', step };
  }
  const [name] = names;
  if (name === undefined) {
    return { is: 'none' };
  }
  return isOfRun(join(directory, RUN_FILES.events)) ? { is: 'begun' } : { is: 'foreign', name };
}

/** The end in summary.json, which is the last file that a run writes. */
function endIn(path: string): RunDone | undefined {
  try {
    return (JSON.parse(readFileSync(path, 'utf8')) as RanksTold).end;
  } catch {
    return undefined; // where it is missing, or another program's
  }
}

/** Whether a run has written events.jsonl; one that was killed may have left it empty. */
function isOfRun(path: string): boolean {
  if (!existsSync(path)) {
    return false;
  }
  const file = openSync(path, 'r');
  try {
    const bytes = Buffer.alloc(FIRST_EVENT.length);
    return FIRST_EVENT.startsWith(bytes.toString('utf8', 0, readSync(file, bytes)));
  } finally {
    closeSync(file);
  }
}
