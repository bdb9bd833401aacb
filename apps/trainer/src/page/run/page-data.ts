// The data of a page: runs in a report, and what a dashboard of many runs tells.

import type { RunEndKind } from '../../output/run-records.js';
import type { PageRecord } from './step-table.js';

/** How a run is. 'killed': its records have no end, and nobody is at work on it. */
export type RunStanding = 'live' | 'killed' | RunEndKind;

/** What the records of a run can't say themselves. */
export interface RunTold {
  readonly state?: RunStanding;
  /** Whether records may still come. */
  readonly isLive?: boolean;
  /** How it is known that nobody is at work, where that is a guess: no sign of life for 9 min. */
  readonly sign?: string;
}

export interface PageRun extends RunTold {
  readonly name: string;
  readonly records: readonly PageRecord[];
}

export interface PageData {
  readonly runs: readonly PageRun[];
}

/** A value of a run's settings, as its config.yaml has it. */
export type Setting = string | number | boolean;

/** A run in the table of a folder's runs. */
export interface RunRow extends Required<Pick<RunTold, 'state'>>, Pick<RunTold, 'sign'> {
  /** The name by which a page asks for the run; it tells nothing of its path. */
  readonly id: string;
  /** The path below the folder. */
  readonly name: string;
  readonly step: number;
  /** The steps that were planned; undefined where no config.yaml tells. */
  readonly steps?: number | undefined;
  /** The last loss that is a number. */
  readonly loss?: number | undefined;
  /** The best evaluation. */
  readonly validLoss?: number | undefined;
  readonly tokensPerSecond?: number | undefined;
  readonly peakBytes?: number | undefined;
  /** The time of the last line, in ms since the Unix epoch. */
  readonly atMs?: number | undefined;
  /** The values of config.yaml, by the names of flags. */
  readonly settings: Readonly<Record<string, Setting>>;
}

/** The most runs that are drawn over each other, each with a look of its own. */
export const MOST_CHOSEN = 12;

/** The messages of a dashboard of many runs, by their events' names. */
export interface RunsMessages {
  /** All runs. */
  readonly runs: { readonly folder: string; readonly rows: readonly RunRow[] };
  /** The rows that are new or differ, and the ids of those that are gone. */
  readonly changed: { readonly rows: readonly RunRow[]; readonly gone: readonly string[] };
  /** Everything of the runs that were asked for, in that order. */
  readonly chosen: readonly (PageRun & { readonly id: string })[];
  /** What has come of a run since. */
  readonly added: { readonly id: string; readonly records: readonly PageRecord[] };
}
