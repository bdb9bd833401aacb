// A run, or several drawn over each other, as one HTML file that loads nothing: the dashboard's
// page with the records inside.

import { basename, resolve } from 'node:path';
import { PAGE_HTML } from '../page/index.html';
import type { PageData, RunTold } from '../page/run/page-data.js';
import { MOST_LINES } from '../page/run/thin-steps.js';
import { standingOf } from '../saves/run-standing.js';
import { RunReader } from './read-run.js';
import { RunHistory } from './run-history.js';
import type { RunEndKind, RunRecord } from './run-records.js';

/** The element of the page that data replaces. */
const NO_DATA = '<script id="data" type="application/json">null</script>';
/** The least steps of which each of several runs is drawn. */
const FEW_LINES = 4000;

/** The most lines of each of several runs, so that the page of all stays light. */
export function linesOfEach(numRuns: number): number {
  return Math.max(FEW_LINES, Math.floor(MOST_LINES / numRuns));
}

/**
 * The page of the runs in `directories`, each written with --out.
 * @throws {UsageError} where one of them holds no run
 */
export async function reportOf(directories: readonly string[]): Promise<string> {
  const names = shortNames(directories);
  const runs: PageData['runs'][number][] = [];
  for (const [i, directory] of directories.entries()) {
    const { history, ...last } = readRun(directory, linesOfEach(directories.length));
    const told = await standingOf(directory, last);
    runs.push({ name: names[i]!, ...told, records: history.records() });
  }
  return withData({ runs });
}

/** The page of a run that has ended, which whoever ends it need not ask for. */
export function reportOfEnded(directory: string, end: RunEndKind): string {
  const { history } = readRun(directory);
  const [name] = shortNames([directory]);
  const told: RunTold = { state: end, isLive: false };
  return withData({ runs: [{ name: name!, ...told, records: history.records() }] });
}

interface LeftRun {
  readonly history: RunHistory;
  /** How its last command has ended; absent where it has not. */
  readonly end?: RunEndKind;
  /** The time of its last record. */
  readonly lastMs?: number;
}

/** The records of a run. A line that a killed run has not finished is left out. */
function readRun(directory: string, most = MOST_LINES): LeftRun {
  const history = new RunHistory(most);
  let end: RunEndKind | undefined;
  let lastMs: number | undefined;
  for (const records of new RunReader(directory).read()) {
    for (const record of records) {
      history.add(record);
      end = endAfter(record, end);
      lastMs = 'atMs' in record ? Math.max(lastMs ?? 0, record.atMs) : lastMs;
    }
  }
  return { history, ...(end && { end }), ...(lastMs !== undefined && { lastMs }) };
}

/** How a run has ended by its events up to `record`; undefined while a command is at work on it. */
export function endAfter(record: RunRecord, end: RunEndKind | undefined): RunEndKind | undefined {
  return record.type === 'runEnd' ? record.end : record.type === 'run' ? undefined : end;
}

/**
 * Short names, such as `first` and `second` for runs/first and runs/second; whole paths where these
 * would be equal.
 */
function shortNames(directories: readonly string[]): string[] {
  const names = directories.map((directory) => basename(resolve(directory)));
  return new Set(names).size === names.length
    ? names
    : directories.map((directory) => resolve(directory));
}

/**
 * The page with its data. JSON's `<` is escaped, so that no text in it can end the element or begin
 * another.
 */
function withData(data: PageData): string {
  const json = JSON.stringify(data).replaceAll('<', '\\u003c');
  return PAGE_HTML.replace(NO_DATA, () => NO_DATA.replace('null', () => json));
}
