// A run, or several drawn over each other, as one HTML file that loads nothing: the dashboard's
// page with the records inside.

import { existsSync, readFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { UsageError } from '../errors.js';
import { RUN_FILES } from '../files/run-files.js';
import { PAGE_HTML } from '../page/index.html';
import type { PageData } from '../page/page-data.js';
import { packSteps } from '../page/step-table.js';
import type { EventRecord, RunRecord, StepLine } from './run-records.js';

/** The element of the page that data replaces. */
const NO_DATA = '<script id="data" type="application/json">null</script>';

/**
 * The page of the runs in `directories`, each written with --out.
 * @throws {UsageError} where one of them holds no run
 */
export function reportOf(directories: readonly string[]): string {
  const names = shortNames(directories);
  const runs = directories.map((directory, i) => ({
    name: names[i]!,
    records: packSteps(readRun(directory)),
  }));
  return withData({ runs });
}

/**
 * The records of a run. A line that a killed run has not finished is left out.
 * @throws {UsageError} where the directory holds no run
 */
export function readRun(directory: string): RunRecord[] {
  const metrics = join(directory, RUN_FILES.metrics);
  if (!existsSync(metrics)) {
    throw new UsageError(
      `${directory} holds no run (${RUN_FILES.metrics} is missing). Give a directory that --out has named.`,
    );
  }
  const events = join(directory, RUN_FILES.events);
  const steps = readLines<StepLine>(metrics).map((line) => ({ type: 'step' as const, ...line }));
  return [...(existsSync(events) ? readLines<EventRecord>(events) : []), ...steps];
}

function readLines<T>(path: string): T[] {
  const text = readFileSync(path, 'utf8');
  const whole = text.slice(0, text.lastIndexOf('\n') + 1);
  return whole
    .split('\n')
    .slice(0, -1)
    .map((line, i) => {
      try {
        return JSON.parse(line) as T;
      } catch (cause) {
        throw new UsageError(`${path}: line ${i + 1} is no JSON. Remove that line.`, { cause });
      }
    });
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
