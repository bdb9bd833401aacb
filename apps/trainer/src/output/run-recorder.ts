// Keeps the records of a run: for those who listen, for readers that come late, and under --out.

import { RUN_FILES } from '../files/run-files.js';
import type { RankReady } from '../rank/events.js';
import { RunDirectory } from './run-directory.js';
import { RunHistory } from './run-history.js';
import type { RunRecord } from './run-records.js';

export interface RunRecorderOptions {
  /** The text of config.yaml, once the devices of all ranks are known. */
  readonly configText?: (ready: readonly RankReady[]) => string;
  readonly listeners?: readonly RunListener[];
}

/** Whoever is told what happens in a run, such as its page. */
export interface RunListener {
  /** Called with each record as it comes. */
  readonly onRecord: (record: RunRecord) => void;
  /** Called with the steps of an earlier command, where a run goes on. */
  readonly onEarlier?: (record: RunRecord) => void;
}

export class RunRecorder {
  /** What has happened so far. */
  readonly history = new RunHistory();
  readonly #outDir: string | undefined;
  readonly #options: RunRecorderOptions;
  #directory: RunDirectory | undefined;
  /** What happened while there was no directory. */
  #unwritten: RunRecord[] = [];

  /** @param outDir the directory of the run, once it is opened; undefined without one */
  constructor(outDir: string | undefined, options: RunRecorderOptions) {
    this.#outDir = outDir;
    this.#options = options;
  }

  /** The run's directory, while it is open. */
  get directory(): RunDirectory | undefined {
    return this.#directory;
  }

  add(record: RunRecord): void {
    this.history.add(record);
    if (this.#directory !== undefined) {
      this.#directory.add(record);
    } else if (this.#outDir !== undefined) {
      this.#unwritten.push(record);
    }
    for (const listener of this.#options.listeners ?? []) {
      listener.onRecord(record);
    }
  }

  /** Opens the directory, if the run has one, and writes there what happened before it existed. */
  open(goesOnAt: number, ready: readonly RankReady[], onWarning: (text: string) => void): void {
    if (this.#outDir === undefined) {
      return;
    }
    const directory = new RunDirectory(this.#outDir, goesOnAt);
    directory.onWarning = onWarning;
    this.history.forgetSteps(goesOnAt);
    for (const line of directory.earlier) {
      const record = { type: 'step', ...line } as const;
      this.history.add(record);
      for (const listener of this.#options.listeners ?? []) {
        listener.onEarlier?.(record);
      }
    }
    for (const record of this.#unwritten) {
      directory.add(record);
    }
    this.#unwritten = [];
    this.#directory = directory;
    const { configText } = this.#options;
    if (configText !== undefined) {
      directory.leave(RUN_FILES.config, () => configText(ready));
    }
  }

  /** Closes the directory before the job starts again. */
  close(): void {
    this.#directory?.close();
    this.#directory = undefined;
  }
}
