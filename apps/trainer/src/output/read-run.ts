// The records that a run has left under --out, or is leaving there.

import { statSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../errors.js';
import { GrowingFile } from '../files/growing-file.js';
import { RUN_FILES } from '../files/run-files.js';
import type { RunRecord } from './run-records.js';

/** The files of a run's records, from which one reads what was added since. */
export class RunReader {
  readonly #files: readonly GrowingFile[];
  readonly #numLines = [0, 0];
  readonly #isLenient: boolean;

  /**
   * @param options.isLenient whether a line that is no JSON is left out; else reading throws
   * @throws {UsageError} where the directory holds no run
   */
  constructor(directory: string, options: { readonly isLenient?: boolean } = {}) {
    const metrics = join(directory, RUN_FILES.metrics);
    if (statSync(metrics, { throwIfNoEntry: false }) === undefined) {
      throw new UsageError(
        `${directory} holds no run (${RUN_FILES.metrics} is missing). Give a directory that --out has named.`,
      );
    }
    this.#isLenient = options.isLenient === true;
    this.#files = [join(directory, RUN_FILES.events), metrics].map((path) => new GrowingFile(path));
  }

  /**
   * The records since the last call, some thousand at a time: events first, then steps.
   * @param onNew called where the run has begun its files anew, so that what was read is to be
   * forgotten
   * @throws {UsageError} for a line that is no JSON
   */
  *read(onNew: () => void = () => {}): Generator<readonly RunRecord[]> {
    for (const [i, file] of this.#files.entries()) {
      for (const text of file.read(onNew)) {
        const lines = text.split('\n').slice(0, -1);
        const records = lines.flatMap((line, at) => this.#record(i, line, at) ?? []);
        this.#numLines[i]! += lines.length;
        yield records;
      }
    }
  }

  #record(i: number, line: string, at: number): RunRecord | undefined {
    try {
      const record = JSON.parse(line);
      return i === 0 ? record : { type: 'step', ...record };
    } catch (cause) {
      if (this.#isLenient) {
        return undefined;
      }
      const number = this.#numLines[i]! + at + 1;
      throw new UsageError(
        `${this.#files[i]!.path}: line ${number} is no JSON. Remove that line.`,
        { cause },
      );
    }
  }
}

/** All records of a run at once. */
export function recordsOf(directory: string): RunRecord[] {
  return [...new RunReader(directory).read()].flat();
}
