// A run as its record tells it: how each command began, what each step came to, and the saves.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../errors.js';
import { RUN_FILES } from '../files/run-files.js';
import {
  type FoundSave,
  findSaves,
  savesOf,
  type UnreadableSave,
} from '../files/save-directory.js';
import { recordsOf } from '../output/read-run.js';
import type { StepLine } from '../output/run-records.js';
import type { RunStart } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';

/** How a command began, with the configuration as a run takes it. */
export interface RecordedStart extends Omit<RunStart, 'config'> {
  readonly config: PreparedRun;
}

export interface RecordedRun {
  readonly directory: string;
  /** In the order of their steps; the last one of several that began at one step. */
  readonly starts: readonly RecordedStart[];
  readonly lines: ReadonlyMap<number, StepLine>;
  /** The steps whose lines no run has written so, whatever their numbers are. */
  readonly altered: ReadonlySet<number>;
  /** The oldest first. */
  readonly saves: readonly (FoundSave | UnreadableSave)[];
}

/**
 * Reads the record of the run in `directory`.
 * @throws {UsageError} where there is none, or none that says how the run began
 */
export async function readRecordedRun(directory: string): Promise<RecordedRun> {
  const starts = new Map<number, RecordedStart>();
  const lines = new Map<number, StepLine>();
  for (const record of recordsOf(directory)) {
    if (record.type === 'start') {
      const { type: _, atMs: __, ...start } = record;
      starts.set(start.step, start as unknown as RecordedStart);
    } else if (record.type === 'step') {
      const { type: _, ...line } = record;
      lines.set(line.step, line);
    }
  }
  const altered = alteredIn(join(directory, RUN_FILES.metrics));
  if (starts.size === 0) {
    const events = join(directory, RUN_FILES.events);
    throw new UsageError(
      `${events}: expected a line of type start, which says how the run began, got ${existsSync(events) ? 'none' : 'no such file'}. Put it back as the run wrote it, for nothing can be computed again without. A run that has not come to its first step has none yet, nor has one of an earlier version.`,
    );
  }
  const ordered = [...starts.values()].sort((a, b) => a.step - b.step);
  const saves = (await findSaves(savesOf(directory))).reverse();
  return { directory, starts: ordered, lines, altered, saves };
}

/**
 * Steps of lines that are not the JSON of what they say: a run writes the shortest digits of each
 * number, so another last digit is seen even where it rounds to the same number.
 */
function alteredIn(path: string): Set<number> {
  const texts = readFileSync(path, 'utf8').split('\n').slice(0, -1);
  const parsed = texts.map((text) => ({ text, line: JSON.parse(text) as StepLine }));
  return new Set(
    parsed.flatMap(({ text, line }) => (JSON.stringify(line) === text ? [] : [line.step])),
  );
}

/**
 * @throws {UsageError} for a step before the first start of the record, which has lost one then, or
 * is that of a run that began later
 */
export function requireStart({ directory, starts }: RecordedRun, step: number): void {
  const [first] = starts;
  if (first!.step >= step) {
    throw new UsageError(
      `${join(directory, RUN_FILES.events)}: expected a line of type start before step ${step}, got the first one before step ${first!.step + 1}. Put back the line that is missing, or ask for steps from ${first!.step + 1} on.`,
    );
  }
}

/** The start whose command computed a step: the last one before it. */
export function startOf({ starts }: RecordedRun, step: number): RecordedStart | undefined {
  return starts.findLast((start) => start.step < step);
}
