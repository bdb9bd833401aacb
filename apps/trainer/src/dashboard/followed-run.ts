// A run that somebody looks at: its history, and what comes after it.

import { setImmediate as nextTurn } from 'node:timers/promises';
import { RunReader } from '../output/read-run.js';
import { RunHistory } from '../output/run-history.js';
import type { RunRecord } from '../output/run-records.js';

/** What one look at the files has found. */
export type FoundRecords =
  /** The run has begun its files anew: all that was told is to be forgotten. */
  'new' | readonly RunRecord[];

export class FollowedRun {
  readonly #directory: string;
  readonly #most: number;
  #reader: RunReader;
  #history: RunHistory;
  #isRead = false;

  /** @param most the most lines of steps that a reader is told at once */
  constructor(directory: string, most: number) {
    this.#directory = directory;
    this.#most = most;
    this.#reader = new RunReader(directory, { isLenient: true });
    this.#history = new RunHistory(most);
  }

  get history(): RunHistory {
    return this.#history;
  }

  /** Reads what was added. A long run is read in pieces, between which others have their turn. */
  async next(): Promise<FoundRecords> {
    let isNew = false;
    const found = await this.#read(() => {
      isNew = true;
    });
    if (!isNew) {
      return found;
    }
    // One of the files may be new before the other one is, so both are read from their starts.
    this.#reader = new RunReader(this.#directory, { isLenient: true });
    this.#history = new RunHistory(this.#most);
    this.#isRead = false;
    await this.#read(() => {});
    return 'new';
  }

  async #read(onNew: () => void): Promise<RunRecord[]> {
    const found: RunRecord[] = [];
    for (const records of this.#reader.read(onNew)) {
      for (const record of records) {
        this.#history.add(record);
      }
      if (this.#isRead) {
        found.push(...records);
      }
      await nextTurn();
    }
    this.#isRead = true;
    return found;
  }
}
